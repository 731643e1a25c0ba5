"""bf16, fp32 and int32: bits survive, rounding is to nearest even, what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import EncodedTensor
from ninfer_core.weights.formats import (
    FORMATS,
    decode_fp16,
    decode_fp64,
    encoded,
    quantize_bf16,
    quantize_fp32,
    quantize_int32,
    take_rows,
)

BF16, FP32, INT32 = FORMATS
WORDS = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=20)


def words32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(torch.int32)


@given(WORDS)
def test_fp32_words_keep_their_bits_there_and_back(values: list[int]):
    bits = words32(values)
    stored = quantize_fp32(bits.view(torch.float32))
    assert torch.equal(stored.data.view(torch.int32), bits)
    assert torch.equal(FP32.decode(stored).view(torch.int32), bits)


@given(st.lists(st.integers(0, (1 << 16) - 1), min_size=1, max_size=20))
def test_every_bf16_word_decodes_to_its_bits_in_the_high_half(values: list[int]):
    words = torch.tensor(values, dtype=torch.int64).to(torch.int16)
    stored = encoded(words.view(torch.bfloat16), "bf16", [len(values)])
    expected = (words.to(torch.int64) << 16).to(torch.int32)
    assert torch.equal(BF16.decode(stored).view(torch.int32), expected)


@given(WORDS)
def test_fp16_becomes_fp32_exactly(values: list[int]):
    halves = words32(values).view(torch.float16)
    decoded = decode_fp16(encoded(halves, "fp16", halves.shape))
    assert decoded.dtype == torch.float32
    finite = torch.isfinite(halves)
    assert torch.equal(decoded[finite].double(), halves[finite].double())
    assert torch.equal(torch.isnan(decoded), torch.isnan(halves))


def test_fp64_becomes_the_nearest_fp32():
    x = torch.tensor([1 + 2.0**-25, 1 + 3 * 2.0**-25], dtype=torch.float64)
    assert decode_fp64(encoded(x, "fp64", [2])).tolist() == [1.0, 1 + 2.0**-23]


def test_bf16_rounds_to_nearest_even():
    x = words32([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF]).view(torch.float32)
    assert quantize_bf16(x).data.view(torch.int16).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_bf16_refuses_what_is_not_finite_in_it(value: float):
    with pytest.raises(ValueError, match="not finite"):
        quantize_bf16(torch.tensor([1.0, value]))


def test_int32_holds_whole_numbers_only():
    stored = quantize_int32(torch.tensor([-(2.0**31), 0.0, 7.0]))
    assert stored.data.view(torch.int32).tolist() == [-(2**31), 0, 7]
    for value in (0.5, 2.0**31, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="whole number"):
            quantize_int32(torch.tensor([value]))


def test_int32_beyond_the_exact_range_of_fp32_is_not_decoded():
    assert INT32.decode(encoded(words32([1 << 24]), "int32", [1])).tolist() == [2.0**24]
    with pytest.raises(ValueError, match="not exact"):
        INT32.decode(encoded(words32([(1 << 24) + 1]), "int32", [1]))


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4)])
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_sizes_are_elements_times_words(form, shape):
    stored = form.quantize(torch.zeros(shape))
    assert form.encoded_bytes(shape) == stored.data.numel()
    assert form.decode(stored).shape == shape


@pytest.mark.parametrize("rows", [[2, 0, 2], [], range(1, 3), range(3), range(2, -1, -1), (1,)])
def test_rows_are_taken_in_the_order_asked(rows):
    x = torch.arange(12.0).view(3, 4)
    taken = take_rows(quantize_bf16(x), rows)
    assert taken.shape == (len(rows), 4)
    assert torch.equal(BF16.decode(taken), x[list(rows)])


def test_a_contiguous_range_of_rows_is_a_view():
    stored = quantize_fp32(torch.zeros(4, 4))
    assert take_rows(stored, range(1, 3)).data.data_ptr() == stored.data.data_ptr() + 16


@pytest.mark.parametrize("rows", [range(2, 5), range(-1, 2), [3], [-1]])
def test_rows_that_are_not_there_are_an_error(rows):
    with pytest.raises((ValueError, IndexError)):
        take_rows(quantize_fp32(torch.zeros(3, 2)), rows)


def test_words_at_an_odd_address_are_read():
    raw = torch.cat([torch.zeros(1, dtype=torch.uint8), quantize_fp32(torch.tensor([1.5, -2.0])).data])
    stored = EncodedTensor(format="fp32", layout="contiguous_le_v1", shape=(2,), data=raw[1:])
    assert FP32.decode(stored).tolist() == [1.5, -2.0]


def test_descriptors_are_free_of_torch():
    code = (
        "import sys\n"
        "from ninfer_core.weights import formats, huggingface\n"
        "from ninfer_core.cli import convert, inspect\n"
        "assert not {'torch', 'numpy', 'safetensors', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
