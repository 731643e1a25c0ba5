"""Stored matrices in tiles: the layout against the stored form, the kernels against the layout's definition."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_kernels import device as devices
from ninfer_kernels import tiled_linear
from ninfer_kernels.quant_linear import reference_planes, stored_rows
from ninfer_kernels.tiled_linear import FORMATS, TileFormat, packing, reference, routes
from ninfer_kernels.tiled_linear.unpack import bytes_at

# rows that are no whole tile, columns that end inside a chunk or a group
ON_GPU = torch.cuda.is_available()
SHAPES = [(1, 256), (65, 130), (70, 320), *([(128, 1088), (200, 512), (1000, 5120)] if ON_GPU else [])]
CASES = [(name, *shape) for name in FORMATS for shape in SHAPES if not (name == "nvfp4" and shape[1] % 64)]
IDS = [f"{name}-N{N}-K{K}" for name, N, K in CASES]
SOME = list(FORMATS) if ON_GPU else ["q5_g64", "nvfp4"]
# numbers are exact; sums come in other orders, and on a GPU the result is rounded to bf16
NUMBER = torch.bfloat16 if ON_GPU else torch.float32
TOLERANCE = 2**-8 if ON_GPU else 1e-5


@triton.jit
def thrice(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """A format of no plugin: bytes that mean three times what they are less 100."""
    return 3 * (bytes_at(codes + i * (64 * 64), o_n, 64, False).to(NUM) - 100)


@pytest.fixture
def kernels(device, monkeypatch):
    """The routes believe in a GPU where kernels are interpreted."""
    monkeypatch.setattr(devices, "launches", lambda x: True)
    return device


def stored(name, N, K, seed=0):
    """The parts of N rows: any legal codes, ordinary scales, a zero, a negative and a subnormal one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows, width, below=256):
        return torch.randint(0, below, (rows, width), generator=generator).byte()

    factors = torch.rand(N, 1, generator=generator) + 0.5
    if name == "fp8_row":
        return [draw(N, K) & 0xFE, factors]
    if name == "nvfp4":
        return [draw(N, K // 2), draw(N, K // 16, 0x7F), factors]
    parts = [draw(N, width) for width in stored_rows.widths(name, K)]
    scales = torch.randn(N, parts[-1].shape[1] // 2, generator=generator).mul_(0.01).half()
    for place, special in enumerate((0.0, -0.25, 2.0**-24)):
        scales.view(-1)[place::11] = special
    return [*parts[:-1], scales.view(torch.uint8)]


def numbers(name, parts, K):
    """What the parts mean, by the stored form's own definition."""
    if name == "fp8_row":
        return reference_planes.e4m3(parts[0]) * parts[1]
    if name == "nvfp4":
        # the kernels' numbers are 2 ** -8 of what codes and scales mean
        return reference_planes.nvfp4(*parts[:2]) * 2**-8 * parts[2]
    data = stored_rows.fill(name, len(parts[0]), K, [parts])
    return reference_planes.decode(name, data, len(parts[0]), K)


def matrix(name, N, K, device, seed=0):
    parts = stored(name, N, K, seed)
    return packing.pack(name, [parts], K, device), numbers(name, parts, K)


def decoded(tiles, device):
    from ninfer_kernels.tiled_linear import gpu

    return gpu.decode(tiles, 0, torch.empty(tiles.rows, tiles.columns, dtype=NUMBER, device=device))


def activations(T, K, seed=1):
    return torch.randn(T, K, generator=torch.Generator().manual_seed(seed)).to(NUMBER)


def close(y, x, weights):
    expected = x.double() @ weights.double().T
    return (y.cpu().double() - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize(("name", "N", "K"), CASES, ids=IDS)
def test_tiles_hold_the_stored_numbers_to_the_bit(name, N, K):
    tiles, weights = matrix(name, N, K, torch.device("cpu"))
    assert torch.equal(reference.decode(tiles), weights)


@pytest.mark.parametrize("name", FORMATS)
def test_a_tile_costs_what_the_stored_form_costs(name):
    parts = stored(name, 128, 512)
    tiles = packing.pack(name, [parts], 512, torch.device("cpu"))
    assert tiles.nbytes == sum(part.nbytes for part in parts)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("values", [1, 200 * 256], ids=["tile-by-tile", "more-at-once"])
def test_matrices_are_stacked_whatever_is_packed_at_once(name, values, monkeypatch):
    monkeypatch.setattr(packing, "SLAB_VALUES", values)
    sources = [stored(name, rows, 256, seed=rows) for rows in (70, 1, 300, 64)]
    tiles = packing.pack(name, sources, 256, torch.device("cpu"))
    assert torch.equal(reference.decode(tiles), torch.cat([numbers(name, parts, 256) for parts in sources]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 50), st.integers(1, 20))
def test_any_stretch_of_the_stack_has_its_own_rows(counts, start, length):
    whole = torch.arange(sum(counts))[:, None]
    sources = [[part, -part] for part in whole.split(counts)]
    start %= len(whole)
    first, second = packing.slab(sources, start, min(start + length, len(whole)))
    assert torch.equal(first, whole[start : start + length])
    assert torch.equal(second, -first)


def test_a_matrix_without_rows_or_columns_is_refused():
    with pytest.raises(ValueError, match="0 x 256"):
        packing.empty(FORMATS["q4_g64"], 0, 256, torch.device("cpu"))


@pytest.mark.parametrize(("name", "N", "K"), CASES, ids=IDS)
@pytest.mark.parametrize(
    ("T", "BT", "splits"), [(1, 8, 1), (3, 8, 2), (17, 16, 2), *([(16, 16, 3), (5, 8, 3), (1, 8, 8)] if ON_GPU else [])]
)
def test_a_few_rows_are_multiplied_by_the_stored_numbers(name, N, K, T, BT, splits, device):
    from ninfer_kernels.tiled_linear import gpu

    tiles, weights = matrix(name, N, K, device)
    x = activations(T, K)
    y = gpu.few_rows(x.to(device), tiles, BT, {"splits": splits, "num_stages": 2})
    assert y.dtype is NUMBER
    assert close(y, x, weights)
    assert not tiles.tickets.any(), "the next call would not know who comes last"


@pytest.mark.parametrize("name", SOME)
def test_a_product_is_the_same_in_every_run_and_beside_other_rows(name, kernels):
    tiles, _ = matrix(name, 60, 1024, kernels)
    operation = routes.TiledLinear(tiles)
    # the interpreter's products depend on the width of the block
    x = activations(16 if ON_GPU else 8, 1024).to(kernels)
    together = operation(x)
    assert torch.equal(operation(x), together)
    for T in range(1, len(x)) if ON_GPU else (1, 5):
        assert torch.equal(operation(x[:T]), together[:T]), f"{T} rows"


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("T", [9, 17])
def test_the_route_takes_any_number_of_rows(name, T, kernels, monkeypatch):
    monkeypatch.setattr(routes, "SCRATCH_BYTES", 64 * 320 * NUMBER.itemsize)
    tiles, weights = matrix(name, 70, 320, kernels)
    operation = routes.TiledLinear(tiles)
    x = activations(T, 320)
    wide = torch.cat([x, x], dim=1).to(kernels)
    assert operation.rows == 70
    assert close(operation(x.to(kernels)), x, weights)
    assert torch.equal(operation(wide[:, 320:]), operation(x.to(kernels)))
    assert close(operation(x.t().contiguous().t().to(kernels)), x, weights)


@pytest.mark.parametrize("T", [3, 40])
def test_a_part_of_longer_rows_is_written_and_nothing_beside_it(T, kernels):
    tiles, _ = matrix("q4_g64", 70, 256, kernels)
    operation = routes.TiledLinear(tiles)
    x = activations(T, 256).to(kernels)
    out = torch.full((T, 100), 7.0, dtype=NUMBER, device=kernels)
    operation.into(x, out[:, 20:90])
    assert torch.equal(out[:, 20:90], operation(x))
    assert (out[:, :20] == 7).all()
    assert (out[:, 90:] == 7).all()


def test_no_rows_make_no_rows(kernels):
    tiles, _ = matrix("q8_g32", 70, 256, kernels)
    assert routes.TiledLinear(tiles)(activations(0, 256).to(kernels)).shape == (0, 70)


def test_activations_of_another_width_are_refused(kernels):
    tiles, _ = matrix("q4_g64", 70, 256, kernels)
    with pytest.raises(ValueError, match=r"\[T, 256\] is expected"):
        routes.TiledLinear(tiles)(activations(2, 128).to(kernels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_activations_keep_their_dtype(dtype, kernels):
    tiles, weights = matrix("q5_g64", 70, 256, kernels)
    x = activations(3, 256)
    y = routes.TiledLinear(tiles)(x.to(kernels, dtype))
    assert y.dtype is dtype
    expected = x.double() @ weights.double().T
    assert (y.cpu().double() - expected).abs().max() <= 2**-8 * expected.abs().max()


@pytest.mark.parametrize(("name", "N", "K"), CASES, ids=IDS)
def test_rows_of_the_matrix_come_out_as_they_are(name, N, K, kernels):
    tiles, weights = matrix(name, N, K, kernels)
    operation = routes.TiledLinear(tiles)
    ids = torch.tensor([N - 1, 0, N - 1])
    expected = weights.to(NUMBER)
    torch.testing.assert_close(operation.take_rows(ids.to(kernels), NUMBER).cpu(), expected[ids], rtol=1e-6, atol=0)
    torch.testing.assert_close(decoded(tiles, kernels).cpu(), expected, rtol=1e-6, atol=0)
    assert operation.take_rows(ids[:0].to(kernels), NUMBER).shape == (0, K)


def test_without_a_gpu_there_is_no_operation():
    assert tiled_linear.linear("q4_g64", [stored("q4_g64", 64, 256)], 256, torch.device("cpu")) is None


def test_a_format_from_elsewhere_brings_its_own_numbers(kernels):
    """Through the same kernels."""
    form = TileFormat("thrice", 64, 256, 0, False, False, thrice)
    tiles = packing.empty(form, 70, 300, kernels)
    raw = torch.randint(90, 110, (128, 512), generator=torch.Generator().manual_seed(1)).byte()
    tiles.codes.copy_(packing.ordered(packing.chunked(raw, 256, 64)))
    x = activations(5, 300)
    assert close(routes.TiledLinear(tiles)(x.to(kernels)), x, 3 * (raw[:70, :300].float() - 100))
