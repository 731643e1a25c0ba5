"""NVFP4: the kit's contract, the specification's vectors (``spec/artifact.md`` §21 V11, V12), divisors, the encoder."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_nvfp4
from ninfer_core.api import EncodedTensor
from ninfer_core.testing import WeightFormatContract
from ninfer_kernels.quant_linear import reference_planes, stored_rows
from ninfer_nvfp4.formats import joined, split

(NVFP4,) = ninfer_nvfp4.ninfer_weight_formats()


def random_tensor(rows, columns, divisors=(1.0,), seed=0):
    """Any codes under scales of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator).byte()
    scales = torch.randint(0, 0x7F, (rows, columns // 16), generator=generator).byte()
    data = stored_rows.fill("nvfp4", rows, columns, [[codes, scales]])
    return joined(data, torch.tensor(divisors), (rows, columns))


class TestNVFP4(WeightFormatContract):
    format = NVFP4
    shapes = ((128, 64), (256, 192), (128, 512))
    refused_shapes = ((127, 64), (128, 32), (1, 64), (128,), (2, 128, 64), (0, 64), (128, 0))
    # half a step between 4 and 6, and the rounding of the block scale
    tolerance = 1 / 6 + 2**-4


class TestStacked(TestNVFP4):
    """Four sources with a divisor each."""

    shapes = ((512, 64),)

    def sample(self, shape, seed):
        return random_tensor(*shape, divisors=(0.5, 3.0, 700.0, 2688.0), seed=seed)

    def test_the_size_is_what_the_format_says(self, shape):
        assert self.sample(shape, 1).data.numel() == NVFP4.encoded_bytes(shape) + 3 * NVFP4.divisor_bytes


def test_v11_a_byte_of_codes_under_a_scale_and_a_divisor():
    data = torch.zeros(NVFP4.encoded_bytes((128, 64)), dtype=torch.uint8)
    data[0], data[128 * 32] = 0x7A, 0x7E
    data[-4:] = torch.tensor([2688.0]).view(torch.uint8)
    stored = EncodedTensor(format="nvfp4", layout=NVFP4.layout, shape=(128, 64), data=data)
    expected = torch.tensor([-448.0, 6 * 448.0]) / 2688.0
    assert torch.equal(NVFP4.decode(stored)[0, :2], expected)
    assert expected.tolist() == pytest.approx([-0.16666667, 1.0])


@pytest.mark.parametrize(
    ("row", "group", "offset"),
    [(0, 0, 0), (0, 3, 3), (0, 4, 512), (1, 0, 16), (32, 0, 4), (127, 319, 40959), (128, 0, 40960), (200, 77, 50825)],
    ids=lambda value: f"V12-{value}",
)
def test_a_scale_is_where_the_swizzle_puts_it(row, group, offset):
    rows, columns = 256, 5120
    scales = torch.zeros(rows, columns // 16, dtype=torch.uint8)
    scales[row, group] = 0x38
    assert stored_rows.rows_to_tiles(scales).nonzero().tolist() == [[offset]]
    # the compiled route finds it there too
    codes = torch.full((rows, columns // 2), 0x22, dtype=torch.uint8)
    stored = joined(stored_rows.fill("nvfp4", rows, columns, [[codes, scales]]), torch.ones(1), (rows, columns))
    product = NVFP4.cpu_linear([stored])(torch.ones(1, columns))
    assert product.nonzero().tolist() == [[0, row]] and product.sum() == 16
    assert NVFP4.decode(stored).nonzero()[:, 1].tolist() == list(range(16 * group, 16 * group + 16))


@pytest.mark.parametrize(("rows", "columns"), [(128, 64), (256, 192), (384, 320)])
def test_the_swizzle_is_a_bijection(rows, columns):
    natural = torch.arange(rows * columns // 16).view(rows, columns // 16)
    tiles = stored_rows.rows_to_tiles(natural)
    assert sorted(tiles.tolist()) == list(range(rows * columns // 16))
    assert torch.equal(stored_rows.tiles_to_rows(tiles, rows, columns), natural)


def test_sizes_are_the_published_ones():
    assert NVFP4.encoded_bytes((14336, 5120)) == 41_287_684
    assert NVFP4.encoded_bytes((262144, 2048)) + 511 * NVFP4.divisor_bytes == 301_991_936


def test_every_code_is_its_value():
    codes = torch.arange(16, dtype=torch.uint8).repeat(4)
    packed = reference_planes.packed(codes[None], 4).repeat(128, 1)
    scales = torch.full((128, 4), 0x38, dtype=torch.uint8)
    stored = joined(stored_rows.fill("nvfp4", 128, 64, [[packed, scales]]), torch.ones(1), (128, 64))
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert NVFP4.decode(stored)[5, :16].tolist() == half + [-value for value in half]
    # minus zero is a legal code
    assert torch.signbit(NVFP4.decode(stored)[0, 8])


def test_each_share_of_the_rows_has_its_divisor():
    stored = random_tensor(256, 64, (2.0, 8.0))
    whole = random_tensor(256, 64, (1.0,))
    decoded, plain = NVFP4.decode(stored), NVFP4.decode(whole)
    assert torch.equal(decoded, torch.cat([plain[:128] / 2, plain[128:] / 8]))
    x = torch.randn(3, 64)
    assert torch.allclose(NVFP4.cpu_linear([stored])(x), x @ decoded.T, rtol=1e-4, atol=1e-3)


def test_rows_of_one_share_keep_one_divisor_and_rows_of_several_theirs():
    stored = random_tensor(256, 64, (2.0, 8.0))
    assert NVFP4.take_rows(stored, range(128)).divisors == 1
    both = NVFP4.take_rows(stored, [127, 128])
    assert both.divisors == 2 and split(both)[1].tolist() == [2.0, 8.0]
    aligned = NVFP4.take_rows(stored, range(128, 256))
    assert aligned.data.numel() == NVFP4.encoded_bytes((128, 64))
    with pytest.raises(IndexError, match=r"0\.\.255"):
        NVFP4.take_rows(stored, [256])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divisor_that_is_not_finite_and_positive_is_named(bad):
    with pytest.raises(ValueError) as refusal:
        NVFP4.check(random_tensor(256, 64, (1.0, bad)))
    assert str(refusal.value) == "weight divisor 1 is not finite and positive"
    NVFP4.check(random_tensor(256, 64, (1.0, 5e-45)))


def test_the_divisor_makes_the_largest_value_2688():
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    x[3, 5] = -7.5
    stored = NVFP4.quantize(x)
    assert split(stored)[1][0] == torch.tensor(2688 / 7.5)
    assert NVFP4.decode(stored)[3, 5] == pytest.approx(-7.5)
    zeros = NVFP4.quantize(torch.zeros(128, 64))
    assert split(zeros)[1][0] == 2688 and not zeros.data[:-4].any()


def test_the_error_on_gaussian_weights_is_the_known_one():
    x = torch.randn(128, 4096, generator=torch.Generator().manual_seed(2))
    off = (NVFP4.decode(NVFP4.quantize(x)) - x).square().mean().sqrt() / x.square().mean().sqrt()
    assert off == pytest.approx(0.095, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=16), st.integers(0, 1 << 30))
def test_codes_are_the_nearest_and_a_tie_is_even(values, seed):
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(seed))
    x[0, : len(values)] = torch.tensor(values)
    stored = NVFP4.quantize(x)
    divisor = split(stored)[1][0]
    codes, scales = stored_rows.split("nvfp4", split(stored)[0], 128, 64)
    numbers = reference_planes.unpacked(codes[:1], 4)[0].tolist()
    steps = reference_planes.e4m3(scales[:1])[0].repeat_interleave(16)
    half = reference_planes.E2M1[:8]
    for place in range(64):
        code = numbers[place]
        assert code != 8, "minus zero"
        if steps[place] == 0:
            assert code == 0
            continue
        wanted = (x[0, place] * divisor / steps[place]).clamp(-6, 6).item()
        distances = [abs(abs(wanted) - value) for value in half]
        near = [c for c in range(8) if distances[c] == min(distances)]
        assert code & 7 == (near[0] if len(near) == 1 else next(c for c in near if c % 2 == 0))
        assert (code > 7) == (wanted < 0 and code & 7 > 0)


def test_rows_in_pieces_give_the_same_bytes_and_are_walked_again():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(5))
    (encode,) = NVFP4.encoders.values()
    assert torch.equal(encode((256, 64), lambda: x.split(100)).data, NVFP4.quantize(x).data)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_an_error(bad):
    x = torch.ones(128, 64)
    x[100, 3] = bad
    with pytest.raises(ValueError, match="not finite"):
        NVFP4.quantize(x)


def test_values_too_small_for_a_divisor_are_an_error():
    with pytest.raises(ValueError, match="divisor beyond fp32"):
        NVFP4.quantize(torch.full((128, 64), 1e-38))
