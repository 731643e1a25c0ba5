"""RMSNorm against its definition."""

import pytest
import torch

from ninfer_kernels import norm
from ninfer_kernels.norm import routes

SHAPES = [(1, 64), (1, 576), (7, 100), (64, 96), (65, 96), (500, 33)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture(params=["compiled", "torch"])
def route(request, monkeypatch):
    """Both routes: the compiled one, and the one that serves where numba is missing."""
    if request.param == "torch":
        monkeypatch.setattr(routes, "_compiled", lambda: None)
    else:
        assert routes._compiled() is not None


@pytest.mark.parametrize(("T", "H"), SHAPES, ids=[f"T{t}-H{h}" for t, h in SHAPES])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_rms_norm_equals_its_reference(T, H, dtype, route):
    g = torch.Generator().manual_seed(T)
    x = (torch.randn(T, H, generator=g) * 30).to(dtype)
    weight = torch.randn(H, generator=g)
    out = norm.rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out, norm.reference.rms_norm(x, weight, 1e-5), rtol=TOLERANCE[dtype], atol=1e-6)


def test_the_reference_is_the_formula_in_fp64():
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    root = ((9 + 16) / 2 + 0.5) ** 0.5
    expected = torch.tensor([[3 / root, 8 / root]])
    torch.testing.assert_close(norm.reference.rms_norm(x, weight, 0.5), expected)


@pytest.mark.parametrize("rms_norm", [norm.rms_norm, norm.reference.rms_norm], ids=["fast", "reference"])
def test_a_zero_row_stays_zero_and_rows_do_not_touch(rms_norm):
    x = torch.randn(3, 48)
    x[1] = 0
    out = rms_norm(x, torch.ones(48), 1e-6)
    assert not out[1].any()
    torch.testing.assert_close(out[2:], rms_norm(x[2:], torch.ones(48), 1e-6))


def test_a_row_has_the_same_bits_in_any_company():
    x, weight = torch.randn(64, 576), torch.randn(576)
    every = norm.rms_norm(x, weight, 1e-5)
    assert torch.equal(norm.rms_norm(x[5:6], weight, 1e-5), every[5:6])


def test_no_rows_give_no_rows():
    assert norm.rms_norm(torch.empty(0, 32), torch.ones(32), 1e-6).shape == (0, 32)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_every_head_is_normed_with_its_own_weight(dtype):
    g = torch.Generator().manual_seed(2)
    stack = (torch.randn(9, 5, 16, generator=g) * 10).to(dtype)
    x, weight = stack[:, 1:4], torch.randn(3, 16, generator=g)
    out = norm.head_rms_norm(x, weight, 1e-6)
    assert out.dtype == dtype
    for h in range(3):
        expected = norm.reference.rms_norm(x[:, h], weight[h], 1e-6)
        torch.testing.assert_close(out[:, h], expected, rtol=TOLERANCE[dtype], atol=1e-6)
        torch.testing.assert_close(norm.reference.head_rms_norm(x, weight, 1e-6)[:, h], expected)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(1, 3, 8), (7, 2, 128), (65, 1, 33)], ids=str)
def test_the_gated_norm_equals_its_definition_and_rounds_once(shape, dtype):
    g = torch.Generator().manual_seed(3)
    x, gate = torch.randn(shape, generator=g) * 5, (torch.randn(shape, generator=g) * 4).to(dtype)
    weight = torch.randn(shape[-1], generator=g)
    out = norm.gated_rms_norm(x, gate, weight, 1e-6)
    assert out.dtype == dtype
    wide = gate.double()
    expected = norm.reference.rms_norm(x, weight, 1e-6).double() * wide / (1 + (-wide).exp())
    torch.testing.assert_close(out, expected.to(dtype), rtol=1e-5 if dtype is torch.float32 else 8e-3, atol=1e-6)
    torch.testing.assert_close(norm.reference.gated_rms_norm(x, gate, weight, 1e-6), out, rtol=8e-3, atol=1e-6)
