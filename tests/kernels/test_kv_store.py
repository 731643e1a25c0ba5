"""The fused scatter of keys and values against its torch definition, bit for bit, the rest of the planes included."""

import pytest
import torch

from ninfer_kernels.paged_attention import store

SHAPES = [(1, 3, 64), (1, 1, 16), (5, 2, 48), (64, 3, 64), (65, 3, 64), (7, 4, 128)]


@pytest.mark.parametrize(("T", "G", "D"), SHAPES, ids=[f"T{t}-G{g}-D{d}" for t, g, d in SHAPES])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=["from-fp32", "from-bf16"])
def test_stored_bits_equal_the_reference(T, G, D, dtype, source):
    generator = torch.Generator().manual_seed(T * D)
    # views of a stacked projection, as a model hands them over
    stacked = torch.randn(T, 3 * G, D, generator=generator) * 10.0 ** torch.randint(-40, 38, (T, 3 * G, 1))
    stacked.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    stacked.view(-1)[G * D : G * D + 2] = torch.tensor([1e-45, 3.3895314e38])
    stacked = stacked.to(source)
    k, v = stacked[:, :G], stacked[:, 2 * G :]
    pages = T // 64 + 2
    index = torch.randperm(pages * G * 64, generator=generator)[: T * G]
    planes = [torch.randn(pages, G, 64, D, generator=generator).to(dtype) for _ in range(2)]
    wanted = [plane.clone() for plane in planes]
    store.store(k, v, *planes, index)
    store.reference(k, v, *wanted, index)
    bits = torch.int16 if dtype is torch.bfloat16 else torch.int32
    for got, want in zip(planes, wanted, strict=True):
        # torch's own casts give a NaN different bits, scalar or vectorised
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.view(bits)[~got.isnan()], want.view(bits)[~want.isnan()])


def test_the_compiled_route_is_there():
    assert set(store._compiled()) == {torch.bfloat16, torch.float32}
