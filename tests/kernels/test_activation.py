"""SwiGLU against its definition."""

import pytest
import torch

from ninfer_kernels import activation
from ninfer_kernels.activation import routes

SHAPES = [(0, 8), (1, 1536), (7, 33), (64, 5), (65, 128)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(params=["compiled", "torch"])
def route(request, monkeypatch):
    """Both routes: the compiled one, and the one that serves where numba is missing."""
    if request.param == "torch":
        monkeypatch.setattr(routes, "_compiled", lambda: None)
    else:
        assert routes._compiled() is not None


@pytest.mark.parametrize(("T", "inner"), SHAPES, ids=[f"T{t}-I{i}" for t, i in SHAPES])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_swiglu_equals_its_reference(T, inner, dtype, route):
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


@pytest.mark.parametrize("scale", [1e-30, 1.0, 60.0, 1e4, 3e38], ids=str)
def test_the_gate_is_right_at_every_size(scale, route):
    g = torch.cat((torch.linspace(-1, 1, 1001), torch.tensor([0.0, -0.0]))) * scale
    out = activation.swiglu(torch.cat((g, torch.ones_like(g)))[None])[0]
    expected = (g.double() * torch.sigmoid(g.double())).float()
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-30)


def test_nan_and_infinity_go_through(route):
    gate_up = torch.tensor([[float("nan"), 1.0, float("inf"), 1.0, float("nan"), 1.0]])
    out = activation.swiglu(gate_up)[0]
    assert out.isnan().tolist() == [True, True, False]
    assert out[2] == float("inf")


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("gate_width", [1, 24])
def test_the_sigmoid_gate_equals_its_definition_per_element_and_per_token(gate_width, dtype):
    g = torch.Generator().manual_seed(4)
    x, gate = torch.randn(7, 24, generator=g).to(dtype), (torch.randn(7, gate_width, generator=g) * 5).to(dtype)
    out = activation.sigmoid_gate(x, gate)
    assert out.dtype == dtype
    expected = (x.double() / (1 + (-gate.double()).exp())).to(dtype)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=1e-6)
    torch.testing.assert_close(activation.reference.sigmoid_gate(x, gate), expected, rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("T", "H", "D"), [(3, 5, 24), (2, 24, 256), (4, 1, 1100), (1, 3, 16)])
def test_heads_gated_together_have_the_bits_they_have_alone(T, H, D, dtype, device, monkeypatch):
    gpu = pytest.importorskip("ninfer_kernels.activation.gpu")
    generator = torch.Generator().manual_seed(T * H)
    stacked = torch.randn(T, 2 * H, D, generator=generator).to(device, dtype)
    x, gate = stacked[:, :H], stacked[:, H:]
    alone = gpu.sigmoid_gate(x, gate)
    monkeypatch.setattr(gpu, "MANY_HEADS", 1)
    assert torch.equal(gpu.sigmoid_gate(x, gate), alone)
    for spread in (gate[:, :, :1], gate[:, :1]):
        assert torch.equal(gpu.sigmoid_gate(x, spread), gpu.sigmoid_gate(x, spread.expand(x.shape).contiguous()))
