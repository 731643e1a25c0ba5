"""Matrices whose codes and scales lie in planes: the compiled routes against their definition."""

import pytest
import torch

from ninfer_kernels import quant_linear
from ninfer_kernels.quant_linear import Matrix, NativeLinear, TorchLinear, reference, routes, stored_rows
from ninfer_kernels.quant_linear.planes import PLANES, layout, why_not_blocks

FORMATS = list(PLANES)
# rows that are no whole tile, chunk or pair; columns that end inside a group or leave one wholly padded
SHAPES = [(1, 256), (3, 320), (71, 4304), (130, 768), (257, 64)]
CASES = [(f, n, k) for f in FORMATS for n, k in SHAPES if not (f == "nvfp4" and k % 64)]
IDS = [f"{f}-N{n}-K{k}" for f, n, k in CASES]

native = pytest.mark.skipif(quant_linear.why_not_native() is not None, reason="no native route on this machine")


def stored(format, rows, columns, seed=0):
    """Random legal codes under scales of ordinary size, a zero, a subnormal and, where it is legal, a negative one."""
    generator = torch.Generator().manual_seed(seed)
    widths = stored_rows.widths(format, columns)
    parts = [torch.randint(0, 256, (rows, width), generator=generator).byte() for width in widths]
    count = rows * widths[-1]
    if format == "nvfp4":
        parts[-1] = torch.randint(0, 0x7F, (rows, widths[-1]), generator=generator).byte()
    elif format.startswith("fp8_row"):
        parts[0] &= 0xFE  # 0x7F and 0xFF are no numbers
        kind = torch.bfloat16 if format == "fp8_row_bf16" else torch.float16
        parts[-1] = torch.rand(rows, 1, generator=generator).mul_(0.01).to(kind).view(torch.uint8)
    else:
        scales = torch.randn(count // 2, generator=generator).mul_(0.01).half()
        for place, special in enumerate((0.0, -0.25, 2.0**-24)):
            scales[place :: max(7, count // 10)] = special
        parts[-1] = scales.view(torch.uint8).view(rows, -1)
    return stored_rows.fill(format, rows, columns, [parts])


def activations(tokens, columns, seed=1):
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(seed))


def rounding_bound(x, weights):
    """What fp32 sums over K products may be off by, whatever their order."""
    return x.shape[1] * 2.0**-24 * (x.double().abs() @ weights.double().abs().T)


@pytest.mark.parametrize(("format", "rows", "columns"), CASES, ids=IDS)
def test_decode_is_the_reference_to_the_bit(format, rows, columns):
    data = stored(format, rows, columns)
    decoded = quant_linear.decode(format, data, rows, columns)
    expected = reference.decode(format, data, rows, columns)
    assert decoded.shape == (rows, columns)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(("format", "rows", "columns"), CASES, ids=IDS)
def test_the_product_is_the_decoded_product_to_rounding(format, rows, columns):
    data = stored(format, rows, columns)
    weights = reference.decode(format, data, rows, columns)
    linear = quant_linear.linear(format, [Matrix(data, rows, columns)])
    for tokens in (1, 2, 3, 4, 5, 16):
        x = activations(tokens, columns)
        error = (linear(x).double() - x.double() @ weights.double().T).abs()
        assert (error <= rounding_bound(x, weights)).all(), f"{tokens} rows"


@native
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_the_weights_multiplied_are_exactly_the_decoded_ones(format, tokens):
    rows, columns = 6, 256
    data = stored(format, rows, columns)
    weights = reference.decode(format, data, rows, columns)
    linear = quant_linear.linear(format, [Matrix(data, rows, columns)])
    for first in range(0, columns - tokens, 7):
        picks = torch.arange(first, first + tokens)
        x = torch.nn.functional.one_hot(picks, columns).float()
        assert torch.equal(linear(x), weights[:, picks].T)


@native
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(format, threads):
    rows, columns = 71, 768
    linear = quant_linear.linear(format, [Matrix(stored(format, rows, columns), rows, columns)])
    x, before = activations(37, columns), torch.get_num_threads()
    alone = torch.cat([linear(row[None]) for row in x])
    torch.set_num_threads(threads)
    try:
        for tokens in (2, 3, 4, 5, 6, 7, 8, 37):
            assert torch.equal(linear(x[:tokens]), alone[:tokens]), f"{tokens} rows together"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("format", FORMATS)
def test_stacked_matrices_are_their_outputs_side_by_side(format):
    parts = [Matrix(stored(format, rows, 512, seed=rows), rows, 512) for rows in (96, 5, 64)]
    together = quant_linear.linear(format, parts)
    x = activations(3, 512)
    assert together.rows == 165
    assert torch.equal(together(x), torch.cat([quant_linear.linear(format, [part])(x) for part in parts], dim=1))


@pytest.mark.parametrize("format", FORMATS)
def test_without_the_native_route_torch_gives_the_same_to_rounding(format, monkeypatch):
    data, x = stored(format, 63, 768), activations(5, 768)
    usual = quant_linear.linear(format, [Matrix(data, 63, 768)])(x)
    monkeypatch.setattr(routes, "why_not_native", lambda: "for this test")
    fallback = quant_linear.linear(format, [Matrix(data, 63, 768)])
    assert isinstance(fallback, TorchLinear)
    weights = reference.decode(format, data, 63, 768)
    assert ((fallback(x) - usual).abs() <= 2 * rounding_bound(x, weights)).all()
    assert torch.equal(quant_linear.decode(format, data, 63, 768), weights)


@native
@pytest.mark.parametrize("format", FORMATS)
def test_with_it_the_native_route_is_taken(format):
    assert isinstance(quant_linear.linear(format, [Matrix(stored(format, 4, 64), 4, 64)]), NativeLinear)
    if format.startswith("fp8_row"):
        # 40 columns are no whole blocks, and there is no padding to read
        assert why_not_blocks(format, 40) is not None
        assert isinstance(quant_linear.linear(format, [Matrix(stored(format, 4, 40), 4, 40)]), TorchLinear)


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_read_at_any_address(format):
    data = stored(format, 5, 256)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), data])[1:]
    expected = reference.decode(format, data, 5, 256)
    assert torch.equal(quant_linear.decode(format, shifted, 5, 256), expected)
    assert torch.equal(reference.decode(format, shifted, 5, 256), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_that_are_not_the_matrix_are_refused(format):
    data = stored(format, 4, 64)
    for bad in (data[:-1], torch.cat([data, data[:1]])):
        with pytest.raises(ValueError, match="bytes are not"):
            quant_linear.linear(format, [Matrix(bad, 4, 64)])
        with pytest.raises(ValueError, match="bytes are not"):
            quant_linear.decode(format, bad, 4, 64)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_split_and_filled_again_are_the_same_bytes(format):
    rows, columns = 130, 320
    data = stored(format, rows, columns)
    parts = stored_rows.split(format, data, rows, columns)
    blocks = [[part[a:b] for part in parts] for a, b in ((0, 1), (1, 129), (129, 130))]
    assert torch.equal(stored_rows.fill(format, rows, columns, blocks), data)
    assert data.numel() == layout(format, rows, columns)[1]
    for wrong in (blocks[:2], [*blocks, blocks[0]]):
        with pytest.raises(ValueError, match="rows"):
            stored_rows.fill(format, rows, columns, wrong)
