"""SwiGLU against its definition."""

import pytest
import torch

from ninfer_kernels import activation

SHAPES = [(0, 8), (1, 1536), (7, 33), (65, 128)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize(("T", "inner"), SHAPES, ids=[f"T{t}-I{i}" for t, i in SHAPES])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_swiglu_equals_its_reference(T, inner, dtype):
    gate_up = (torch.randn(T, 2 * inner, generator=torch.Generator().manual_seed(T)) * 4).to(dtype)
    kept = gate_up.clone()
    out = activation.swiglu(gate_up)
    assert out.is_contiguous()
    assert torch.equal(gate_up, kept)
    torch.testing.assert_close(out, activation.reference.swiglu(gate_up), rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("swiglu", [activation.swiglu, activation.reference.swiglu], ids=["fast", "reference"])
def test_the_first_half_is_the_gate(swiglu):
    out = swiglu(torch.tensor([[0.0, 100.0, -100.0, 5.0, 2.0, 3.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 200.0, 0.0]]))
