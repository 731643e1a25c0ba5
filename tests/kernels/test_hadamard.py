"""The rotation H_D and its compiled route."""

import pytest
import torch

from ninfer_kernels import hadamard

DIMS = [1, 2, 8, 64, 128, 256, 512]


def matrix(dim):
    index = torch.arange(dim)
    bits = index[:, None] & index[None, :]
    parity = sum((bits >> b) & 1 for b in range(10)) % 2
    return (1.0 - 2.0 * parity.double()) / dim**0.5


@pytest.mark.parametrize("dim", DIMS)
def test_it_multiplies_by_the_signed_popcount_matrix(dim):
    x = torch.randn(5, dim, generator=torch.Generator().manual_seed(dim))
    expected = (x.double() @ matrix(dim)).float()
    torch.testing.assert_close(hadamard.reference.rotate(x), expected, rtol=1e-5, atol=1e-5)


def test_the_first_and_the_sixth_unit_vector_have_the_published_images():
    e = torch.eye(256)
    assert (hadamard.rotate(e[0]) == 0.0625).all()
    signs = "".join("+" if v > 0 else "-" for v in hadamard.rotate(e[5])[:16].tolist())
    assert signs == "+-+--+-++-+--+-+"


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_route_gives_the_same_bits(dim, dtype):
    x = torch.randn(3, 7, dim, generator=torch.Generator().manual_seed(dim)).to(dtype)
    before = x.clone()
    assert torch.equal(hadamard.rotate(x), hadamard.reference.rotate(x))
    assert torch.equal(x, before)
    # a strided view, and no rows at all
    assert torch.equal(hadamard.rotate(x[:, 1]), hadamard.reference.rotate(x[:, 1]))
    assert hadamard.rotate(x[:0]).shape == (0, 7, dim)


def test_the_route_without_numba_gives_the_same_bits(monkeypatch):
    x = torch.randn(3, 64)
    compiled = hadamard.rotate(x)
    monkeypatch.setattr("ninfer_kernels.hadamard.routes._compiled", lambda: None)
    assert torch.equal(hadamard.rotate(x), compiled)


def test_it_is_its_own_inverse():
    x = torch.randn(9, 256)
    torch.testing.assert_close(hadamard.rotate(hadamard.rotate(x)), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [3, 96])
def test_other_dimensions_are_refused(dim):
    with pytest.raises(ValueError, match=f"not {dim}"):
        hadamard.rotate(torch.ones(1, dim))


@pytest.mark.parametrize(("R", "D"), [(1, 2), (3, 64), (9, 128), (5, 256), (2, 512)], ids=str)
def test_the_kernel_equals_the_reference_to_the_bit(R, D, device):
    from ninfer_kernels.hadamard import gpu

    x = torch.randn(R, 2 * D, generator=torch.Generator().manual_seed(D))[:, D:]
    assert gpu.serves(x)
    assert torch.equal(gpu.rotate(x.to(device)).cpu(), hadamard.reference.rotate(x))
