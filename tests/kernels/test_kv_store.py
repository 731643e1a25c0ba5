"""The fused scatter of keys and values against its torch definition, bit for bit, the rest of the planes included."""

import pytest
import torch

from ninfer_kernels import hadamard, kv_int8
from ninfer_kernels.paged_attention import Stored, store


def cast_sides(planes):
    return [Stored((plane,), lambda planes: planes[0].float(), True, encode=cast_to(plane.dtype)) for plane in planes]


def cast_to(dtype):
    return lambda rows: (rows.to(dtype),)


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
    slots = store.Slots(torch.randperm(pages * 64, generator=generator)[:T])
    planes = [torch.randn(pages, G, 64, D, generator=generator).to(dtype) for _ in range(2)]
    wanted = [plane.clone() for plane in planes]
    store.store(k, v, *cast_sides(planes), slots)
    store.reference(k, v, *cast_sides(wanted), slots)
    bits = torch.int16 if dtype is torch.bfloat16 else torch.int32
    for got, want in zip(planes, wanted, strict=True):
        # torch's own casts give a NaN different bits, scalar or vectorised
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.view(bits)[~got.isnan()], want.view(bits)[~want.isnan()])


@pytest.mark.parametrize(("T", "G", "pages"), [(0, 2, 1), (1, 1, 1), (5, 3, 2), (65, 2, 40_000_000)], ids=str)
def test_a_row_is_a_place_of_a_head_of_a_page(T, G, pages):
    """Of 40 million pages too: rows do not fit 32 bits."""
    at = torch.randint(64 * pages, (T,), generator=torch.Generator().manual_seed(T))
    slots = store.Slots(at)
    expected = [(slot // 64 * G + head) * 64 + slot % 64 for slot in at.tolist() for head in range(G)]
    assert slots.rows(G).tolist() == expected
    assert slots.rows(G) is slots.rows(G), "made once for all layers"


def test_a_step_without_tokens_stores_nothing(monkeypatch):
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    plane = torch.ones(1, 2, 64, 16)
    store.store(*(torch.empty(0, 2, 16) for _ in "kv"), *cast_sides([plane, plane]), store.Slots(torch.arange(0)))
    assert plane.eq(1).all()


def test_the_kernel_is_given_the_slots_alone(device, monkeypatch):
    """What torch would derive from them is a handful of launches in every round."""
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    k, v = (x.to(device) for x in rows_of(3, 2, 16, torch.float32))
    slots = store.Slots(torch.tensor([70, 3, 127], device=device))
    monkeypatch.setattr(slots, "rows", lambda heads: pytest.fail("rows were derived"))
    planes = [torch.zeros(2, 2, 64, 16, device=device) for _ in range(2)]
    store.store(k, v, *cast_sides(planes), slots)
    for plane, x in zip(planes, (k, v), strict=True):
        for t, slot in enumerate(slots.at.tolist()):
            assert torch.equal(plane[slot // 64, :, slot % 64], x[t])
        assert plane.count_nonzero() == x.count_nonzero()


def test_the_compiled_route_is_there():
    assert set(store._compiled()) == {torch.bfloat16, torch.float32}


def int8_side(pages, G, D, rotates, device):
    from ninfer_kernels.kv_int8 import kernel

    planes = (torch.zeros(pages, G, 64, D, dtype=torch.int8), torch.zeros(pages, G, 64, D // 64, dtype=torch.float16))

    def encode(rows):
        rounded = rows.to(torch.bfloat16)
        return kv_int8.encode(hadamard.reference.rotate(rounded) if rotates else rounded)

    device_encode = kernel.encode_rotated if rotates else kernel.encode
    moved = tuple(plane.to(device) for plane in planes)
    return Stored(moved, lambda planes: kv_int8.decode(*planes), encode=encode, device_encode=lambda: device_encode)


def rows_of(T, G, D, dtype):
    """Views of a stacked projection, with values that are hard to store."""
    generator = torch.Generator().manual_seed(T * D)
    stacked = torch.randn(T, 3 * G, D, generator=generator) * 10.0 ** torch.randint(-6, 4, (T, 3 * G, 1))
    stacked[0, 0] = 0
    stacked[-1, G - 1, : D // 2] = 1e-7
    # the interpreter cuts bf16 off where a GPU rounds: values that are bf16 already are the same to both
    stacked = stacked.bfloat16().to(dtype)
    return stacked[:, :G], stacked[:, 2 * G :]


@pytest.mark.parametrize(("T", "G", "D"), [(1, 1, 64), (5, 2, 128), (7, 3, 256)], ids=str)
def test_the_kernel_stores_the_bytes_of_the_codec(T, G, D, device):
    from ninfer_kernels.paged_attention import gpu_store

    k, v = rows_of(T, G, D, torch.float32)
    at = torch.randperm(3 * 64, generator=torch.Generator().manual_seed(D))[:T]
    got, want = ([int8_side(3, G, D, rotates, where) for rotates in (True, False)] for where in (device, "cpu"))
    assert gpu_store.serves(k, v, *got)
    gpu_store.store(k.to(device), v.to(device), *got, at.to(device))
    store.reference(k, v, *want, store.Slots(at))
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine.planes, theirs.planes, strict=True):
            assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize(("T", "G", "D"), [(1, 2, 16), (9, 2, 128), (3, 1, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_the_kernel_casts_as_the_reference_does(T, G, D, dtype, device):
    from ninfer_kernels.paged_attention import gpu_store

    k, v = rows_of(T, G, D, torch.float32)
    at = torch.randperm(2 * 64, generator=torch.Generator().manual_seed(D))[:T]
    got, want = ([torch.zeros(2, G, 64, D, dtype=dtype, device=where) for _ in range(2)] for where in (device, "cpu"))
    gpu_store.store(k.to(device), v.to(device), *cast_sides(got), at.to(device))
    store.reference(k, v, *cast_sides(want), store.Slots(at))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.cpu(), b)


def test_a_nan_shows_after_decoding(device):
    from ninfer_kernels.paged_attention import gpu_store

    k, v = rows_of(2, 1, 128, torch.float32)
    v = v.clone()
    v[0, 0, 3], v[1, 0, 70] = float("nan"), float("inf")
    got, want = ([int8_side(1, 1, 128, False, where) for _ in range(2)] for where in (device, "cpu"))
    at = torch.arange(2)
    gpu_store.store(k.to(device), v.to(device), *got, at.to(device))
    store.reference(k, v, *want, store.Slots(at))
    decoded, expected = (kv_int8.decode(*(p[0, 0].cpu() for p in side[1].planes))[:2] for side in (got, want))
    assert torch.equal(decoded.isnan(), expected.isnan())
    assert torch.equal(decoded[~expected.isnan()], expected[~expected.isnan()])
