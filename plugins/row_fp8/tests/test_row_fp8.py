"""Row FP8: the kit's contract, the specification's vectors (``spec/artifact.md`` §21 V10, V13-V15), sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_row_fp8
from ninfer_core.api import EncodedTensor
from ninfer_core.testing import WeightFormatContract
from ninfer_kernels.quant_linear import NativeLinear, TorchLinear, reference_planes, why_not_native

BF16, FP16 = ninfer_row_fp8.ninfer_weight_formats()
ROW = [1.0, -0.5, 0.3, 0.001]
VALUES = [0.998046875, -0.4990234375, 0.28515625, 0.0009746551513671875]


class RowFP8(WeightFormatContract):
    shapes = ((4, 256), (7, 512), (1, 256), (5, 37), (2, 4))
    refused_shapes = ((4,), (2, 4, 256), (0, 256), (4, 0), ())
    # half a step of three bits, the scale's rounding, and the rounding to bf16 before it
    tolerance = 2**-4 + 2**-8 + 2**-9


class TestRowBF16(RowFP8):
    format = BF16


class TestRowFP16(RowFP8):
    format = FP16


@pytest.mark.parametrize(
    ("code", "value"),
    [(0x01, 2.0**-9), (0x08, 2.0**-6), (0x38, 1.0), (0x7E, 448.0), (0x80, -0.0)],
    ids=lambda value: f"V10-{value}",
)
def test_an_e4m3_code_is_its_value(code, value):
    decoded = reference_planes.e4m3(torch.tensor([code], dtype=torch.uint8))
    assert torch.equal(decoded.view(torch.int32), torch.tensor([value]).view(torch.int32))


def test_v10_the_last_code_is_not_a_number():
    assert reference_planes.e4m3(torch.tensor([0x7F, 0xFF], dtype=torch.uint8)).isnan().all()
    stored = BF16.quantize(torch.ones(1, 4))
    stored.data[2] = 0x7F
    assert BF16.decode(stored)[0].isnan().tolist() == [False, False, True, False]


def test_v13_row_maxabs_with_a_bf16_scale():
    stored = BF16.quantize(torch.tensor([ROW]))
    assert stored.data.numel() == 258
    assert stored.data[:4].numpy().tobytes() == bytes.fromhex("7ef6702e")
    assert stored.data[256:].numpy().tobytes() == (0x3B12).to_bytes(2, "little")
    assert not stored.data[4:256].any()
    assert BF16.decode(stored)[0].tolist() == VALUES


def test_v14_row_maxabs_interleaved_with_a_binary16_scale():
    stored = FP16.quantize(torch.tensor([ROW]))
    assert stored.data.numpy().tobytes() == bytes.fromhex("7ef6702e9218")


@pytest.mark.parametrize("form", [BF16, FP16], ids=lambda form: form.name)
def test_v15_a_row_of_zeros_of_any_sign_is_all_zero_bytes(form):
    stored = form.quantize(torch.tensor([[0.0, -0.0, 0.0], [1.0, -0.0, 0.0]]))
    taken = form.take_rows(stored, [0])
    assert not taken.data.any()


@pytest.mark.parametrize("form", [BF16, FP16], ids=lambda form: form.name)
def test_values_too_small_for_a_scale_get_the_smallest_one(form):
    least = 2.0**-133 if form is BF16 else 2.0**-24
    x = torch.tensor([[least, 0.0, -least]])
    decoded = form.decode(form.quantize(x))
    assert torch.isfinite(decoded).all()
    assert decoded[0, 1] == 0
    assert decoded[0, 0] > 0 > decoded[0, 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3.4e38])
def test_a_value_that_is_not_finite_in_bf16_is_an_error(bad):
    for form in (BF16, FP16):
        with pytest.raises(ValueError, match="not finite"):
            form.quantize(torch.tensor([[1.0, bad]]))


def test_a_scale_beyond_binary16_is_an_error():
    x = torch.full((1, 2), 448 * 65536.0)
    BF16.quantize(x)
    with pytest.raises(ValueError, match="scale beyond fp16"):
        FP16.quantize(x)


def test_sizes_are_the_published_ones():
    assert BF16.encoded_bytes((14336, 5120)) == 73_428_992
    assert FP16.encoded_bytes((320_001_536, 160)) == 51_840_248_832


def nearest_e4m3(value):
    """The nearest code's value, by looking at all of them; a tie goes to the even code."""
    codes = torch.arange(127)
    values = reference_planes.e4m3(codes.to(torch.uint8)).double()
    distance = (values - abs(value)).abs()
    best = [int(code) for code in codes[distance == distance.min()]]
    code = next(code for code in best if code % 2 == 0 or len(best) == 1)
    return values[code].item() * (-1 if value < 0 else 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=16), min_size=2, max_size=9))
def test_codes_are_the_nearest_of_the_scaled_values(values):
    x = torch.tensor([values]).bfloat16().float()
    stored = BF16.quantize(x)
    scale = stored.data[-2:].clone().view(torch.bfloat16).float()
    if scale == 0:
        assert not x.any()
        return
    scaled = (x * (1 / scale.double()).float()).clamp(-448, 448)
    expected = [nearest_e4m3(value) for value in scaled[0].double().tolist()]
    assert BF16.decode(stored)[0].tolist() == [(value * scale).item() for value in expected]


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 70), seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("form", [BF16, FP16], ids=lambda form: form.name)
def test_rows_taken_apart_and_put_together_are_the_same_bytes(form, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    stored = form.quantize(torch.randn(rows, columns, generator=generator))
    order = torch.randperm(rows, generator=generator).tolist()
    again = form.take_rows(form.take_rows(stored, order), [order.index(r) for r in range(rows)])
    assert torch.equal(again.data, stored.data)
    assert again == EncodedTensor(
        format=form.name, layout=form.layout, shape=(rows, columns), data=again.data, divisors=1
    )


@pytest.mark.skipif(why_not_native() is not None, reason="no native route on this machine")
def test_whole_blocks_are_multiplied_as_they_lie_and_odd_rows_from_a_copy():
    assert isinstance(BF16.cpu_linear([BF16.quantize(torch.ones(4, 64))]), NativeLinear)
    assert isinstance(BF16.cpu_linear([BF16.quantize(torch.ones(4, 63))]), TorchLinear)
