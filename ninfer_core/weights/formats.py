"""The direct weight formats ``bf16``, ``fp32`` and ``int32`` (``spec/artifact.md`` §11.1, §12.1, §13.4).

Words lie in C order, little-endian, and keep their bits: signed zeros and NaN payloads survive. torch loads when a
tensor is handled, never when the descriptors are read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.api import EncodedTensor, Rows, WeightFormat

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.api.nn import Linear

LAYOUT = "contiguous_le_v1"
CPU_BLOCK = 32  # columns the CPU's route reads at once
FP32_EXACT = 1 << 24  # whole numbers up to here are exact in fp32

assert sys.byteorder == "little", "words are viewed in place, so the host must be little-endian"


def words(tensor: EncodedTensor, dtype_name: str) -> Tensor:
    """The stored words as a flat torch tensor of that dtype; a view wherever the address allows it."""
    import torch

    dtype: torch.dtype = getattr(torch, dtype_name)
    data = tensor.data
    if data.data_ptr() % dtype.itemsize or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)


def encoded(words_: Tensor, format_name: str, shape: Sequence[int]) -> EncodedTensor:
    """Flat words of a direct format as a stored tensor."""
    import torch

    data = words_.contiguous().reshape(-1).view(torch.uint8)
    return EncodedTensor(format=format_name, layout=LAYOUT, shape=tuple(shape), data=data)


def take_rows(tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    """Rows (first axis) in that order; a contiguous ``range`` is a view. ValueError for a scalar."""
    import torch

    if not tensor.shape:
        raise ValueError("a scalar has no rows")
    table = tensor.data.view(tensor.shape[0], -1)
    if isinstance(rows, range) and rows.step == 1:
        if not 0 <= rows.start <= rows.stop <= tensor.shape[0]:
            raise ValueError(f"rows {rows.start} to {rows.stop} of {tensor.shape[0]}")
        taken = table[rows.start : rows.stop]
    else:
        taken = table.index_select(0, torch.as_tensor(rows, dtype=torch.int64))
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), data=taken.reshape(-1))


def encode_rows(dtype_name: str, format_name: str, shape: tuple[int, ...], rows: Rows) -> EncodedTensor:
    """``cast_direct`` of a matrix that comes some rows at a time."""
    import torch

    dtype: torch.dtype = getattr(torch, dtype_name)
    out = torch.empty(shape, dtype=dtype)
    first = 0
    for x in rows():
        if dtype == torch.bfloat16:
            x = finite_bf16(x)
        out[first : first + len(x)] = x
        first += len(x)
    if first != shape[0]:
        raise ValueError(f"{first} rows instead of {shape[0]}")
    return encoded(out, format_name, shape)


def decode_bf16(tensor: EncodedTensor) -> Tensor:
    """fp32 whose high half is the word."""
    return words(tensor, "bfloat16").float().view(tensor.shape)


def bf16_linear(tensors: Sequence[EncodedTensor]) -> Linear | None:
    """The words multiplied as they lie, in fp32, at half the memory of fp32 weights; for rows of whole blocks."""
    from ninfer_kernels.quant_linear import Matrix, linear, why_not_native

    if tensors[0].shape[1] % CPU_BLOCK or why_not_native() is not None:
        return None
    product: Linear = linear("bf16", [Matrix(tensor.data, *tensor.shape) for tensor in tensors])
    return product


def quantize_bf16(x: Tensor) -> EncodedTensor:
    """Round to nearest, ties to even; ValueError for a value that is not finite or leaves the range."""
    return encoded(finite_bf16(x), "bf16", x.shape)


def finite_bf16(x: Tensor) -> Tensor:
    """``x`` in bf16; ValueError for a value that is not finite or leaves the range."""
    import torch

    rounded = x.to(torch.bfloat16)
    if not bool(torch.isfinite(rounded).all()):
        raise ValueError("a value is not finite in bf16")
    return rounded


def decode_fp32(tensor: EncodedTensor) -> Tensor:
    """The stored words."""
    return words(tensor, "float32").view(tensor.shape)


def quantize_fp32(x: Tensor) -> EncodedTensor:
    """The words of ``x`` as they are."""
    return encoded(x.float(), "fp32", x.shape)


def decode_int32(tensor: EncodedTensor) -> Tensor:
    """fp32 of the same whole numbers; ValueError beyond 2^24, where fp32 has gaps."""
    found = words(tensor, "int32")
    if found.numel() and not -FP32_EXACT <= int(found.min()) <= int(found.max()) <= FP32_EXACT:
        raise ValueError(f"a whole number beyond {FP32_EXACT} is not exact in fp32")
    return found.float().view(tensor.shape)


def quantize_int32(x: Tensor) -> EncodedTensor:
    """Whole numbers of fp32; ValueError for a fraction or a value outside int32."""
    import torch

    whole = x.double()
    if not bool(((whole == whole.round()) & (whole >= -(2**31)) & (whole < 2**31)).all()):
        raise ValueError("a value is not a whole number of 32 bits")
    return encoded(whole.to(torch.int32), "int32", x.shape)


def decode_fp16(tensor: EncodedTensor) -> Tensor:
    """fp32 of binary16 words, exactly; a source's format, never an artifact's."""
    return words(tensor, "float16").float().view(tensor.shape)


def decode_fp64(tensor: EncodedTensor) -> Tensor:
    """fp32 nearest to binary64 words; a source's format, never an artifact's."""
    return words(tensor, "float64").float().view(tensor.shape)


SOURCE_DECODERS: dict[str, Callable[[EncodedTensor], Tensor]] = {"fp16": decode_fp16, "fp64": decode_fp64}
"""Formats that only foreign checkpoints have; they are kept as fp32."""


def _sized(word_bytes: int) -> Callable[[Sequence[int]], int]:
    return lambda shape: math.prod(shape) * word_bytes


FORMATS = (
    WeightFormat(
        name="bf16",
        layout=LAYOUT,
        encoded_bytes=_sized(2),
        decode=decode_bf16,
        take_rows=take_rows,
        quantize=quantize_bf16,
        encoders={"cast_direct": partial(encode_rows, "bfloat16", "bf16")},
        cpu_linear=bf16_linear,
    ),
    WeightFormat(
        name="fp32",
        layout=LAYOUT,
        encoded_bytes=_sized(4),
        decode=decode_fp32,
        take_rows=take_rows,
        quantize=quantize_fp32,
        encoders={"cast_direct": partial(encode_rows, "float32", "fp32")},
    ),
    WeightFormat(
        name="int32",
        layout=LAYOUT,
        encoded_bytes=_sized(4),
        decode=decode_int32,
        take_rows=take_rows,
        quantize=quantize_int32,
    ),
)
