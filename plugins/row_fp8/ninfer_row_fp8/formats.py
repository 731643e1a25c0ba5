"""The descriptors: layouts ``row_scale_v1`` and ``row_interleaved_v1`` (``spec/artifact.md`` §11.4, §12.4, §12.5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.api import EncodedTensor, Rows, WeightFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.api.nn import Linear

LAYOUTS = {"bf16": "row_scale_v1", "fp16": "row_interleaved_v1"}
METHOD = "fp8_row_maxabs"


def encoded_bytes(scale: str, shape: tuple[int, ...]) -> int:
    """ValueError for anything but a matrix."""
    from ninfer_kernels.quant_linear.planes import layout

    if len(shape) != 2 or min(shape) <= 0:
        raise ValueError(f"rows with a scale make a matrix [rows, columns], not a tensor of shape {list(shape)}")
    return layout(f"fp8_row_{scale}", *shape)[1]


def decode(scale: str, tensor: EncodedTensor) -> Tensor:
    """fp32(code) * fp32(scale of the row); codes 0x7F and 0xFF are NaN."""
    from ninfer_kernels.quant_linear import reference_planes

    return reference_planes.decode(f"fp8_row_{scale}", tensor.data, *tensor.shape)


def take_rows(scale: str, tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    """The encoded rows in that order, as a matrix of their own. IndexError for a row that is missing."""
    from ninfer_kernels.quant_linear import stored_rows

    data = stored_rows.take(f"fp8_row_{scale}", tensor.data, *tensor.shape, rows)
    shape = (len(rows), tensor.shape[1])
    return EncodedTensor(format=tensor.format, layout=tensor.layout, shape=shape, data=data)


def encode(scale: str, shape: tuple[int, ...], rows: Rows) -> EncodedTensor:
    """The matrix of these rows by ``fp8_row_maxabs``."""
    from ninfer_kernels.quant_linear import stored_rows

    from .encoder import encode_rows

    size = encoded_bytes(scale, shape)
    data = stored_rows.fill(f"fp8_row_{scale}", *shape, (encode_rows(scale, x) for x in rows()))
    assert data.numel() == size
    return EncodedTensor(format=f"fp8_e4m3fn_row_{scale}", layout=LAYOUTS[scale], shape=tuple(shape), data=data)


def quantize(scale: str, x: Tensor) -> EncodedTensor:
    return encode(scale, tuple(x.shape), lambda: [x])


def cpu_linear(scale: str, tensors: Sequence[EncodedTensor]) -> Linear:
    """The stacked rows as one operation on the stored codes."""
    from ninfer_kernels.quant_linear import Matrix, linear

    return linear(f"fp8_row_{scale}", [Matrix(tensor.data, *tensor.shape) for tensor in tensors])


def gpu_linear(scale: str, tensors: Sequence[EncodedTensor], device: torch.device) -> Linear | None:
    """The stacked rows as one operation on the stored codes; None where nothing can run it."""
    import torch

    from ninfer_kernels import tiled_linear
    from ninfer_kernels.quant_linear import reference_planes, stored_rows

    kind = torch.bfloat16 if scale == "bf16" else torch.float16
    stored = []
    for tensor in tensors:
        codes, scales = stored_rows.split(f"fp8_row_{scale}", tensor.data, *tensor.shape)
        stored.append([codes, reference_planes.words_of(scales, kind).float()])
    return tiled_linear.linear("fp8_row", stored, tensors[0].shape[1], device)


FORMATS = tuple(
    WeightFormat(
        name=f"fp8_e4m3fn_row_{scale}",
        layout=layout,
        encoded_bytes=partial(encoded_bytes, scale),
        decode=partial(decode, scale),
        take_rows=partial(take_rows, scale),
        quantize=partial(quantize, scale),
        encoders={METHOD: partial(encode, scale)},
        cpu_linear=partial(cpu_linear, scale),
        gpu_linear=partial(gpu_linear, scale),
        activations="AllowA8",
    )
    for scale, layout in LAYOUTS.items()
)
