"""The descriptors: layout ``row_split_k128_v1``, planes of codes, high bits and scales (``spec/artifact.md`` §12.2).

The kernels know a format by its name here without ``_fp16``, which says what the scales are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.api import EncodedTensor, Rows, WeightFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.api.nn import Linear

LAYOUT = "row_split_k128_v1"
ENCODED = ("q4_g64", "q5_g64", "q6_g64", "q8_g32")
IMPORTED = ("q2_g64", "t2_g128")
"""These come from models trained for them and have no encoder."""


def encoded_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """ValueError for anything but a matrix."""
    from ninfer_kernels.quant_linear.planes import layout

    if len(shape) != 2 or min(shape) <= 0:
        raise ValueError(f"{kind}_fp16 holds matrices [rows, columns], not a tensor of shape {list(shape)}")
    return layout(kind, *shape)[1]


def decode(kind: str, tensor: EncodedTensor) -> Tensor:
    """fp32(scale) * fp32(code), to the bit (§11.2)."""
    from ninfer_kernels import quant_linear

    return quant_linear.decode(kind, tensor.data, *tensor.shape)


def take_rows(kind: str, tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    """The encoded rows in that order, as a matrix of their own. IndexError for a row that is missing."""
    from ninfer_kernels.quant_linear import stored_rows

    data = stored_rows.take(kind, tensor.data, *tensor.shape, rows)
    return EncodedTensor(format=tensor.format, layout=LAYOUT, shape=(len(rows), tensor.shape[1]), data=data)


def encode(kind: str, method: str, shape: tuple[int, ...], rows: Rows) -> EncodedTensor:
    """The matrix of these rows with scales and codes chosen by ``method``."""
    from ninfer_kernels.quant_linear import stored_rows

    from . import encoders

    size = encoded_bytes(kind, shape)
    blocks: Iterable[list[Tensor]] = (encoders.encode_rows(kind, method, x) for x in rows())
    data = stored_rows.fill(kind, *shape, blocks)
    assert data.numel() == size
    return EncodedTensor(format=f"{kind}_fp16", layout=LAYOUT, shape=tuple(shape), data=data)


def quantize(kind: str, x: Tensor) -> EncodedTensor:
    """By ``grouped_absmax``."""
    return encode(kind, "grouped_absmax", tuple(x.shape), lambda: [x])


def cpu_linear(kind: str, tensors: Sequence[EncodedTensor]) -> Linear:
    """The stacked rows as one operation on the stored planes."""
    from ninfer_kernels.quant_linear import Matrix, linear

    return linear(kind, [Matrix(tensor.data, *tensor.shape) for tensor in tensors])


def gpu_linear(kind: str, tensors: Sequence[EncodedTensor], device: torch.device) -> Linear | None:
    """The stacked rows as one operation on packed bytes; None where nothing can run it."""
    from ninfer_kernels import tiled_linear
    from ninfer_kernels.quant_linear import stored_rows

    stored = [stored_rows.split(kind, tensor.data, *tensor.shape) for tensor in tensors]
    return tiled_linear.linear(kind, stored, tensors[0].shape[1], device)


def descriptor(kind: str) -> WeightFormat:
    methods = ("grouped_absmax", "grouped_search") if kind in ENCODED else ()
    return WeightFormat(
        name=f"{kind}_fp16",
        layout=LAYOUT,
        encoded_bytes=partial(encoded_bytes, kind),
        decode=partial(decode, kind),
        take_rows=partial(take_rows, kind),
        quantize=partial(quantize, kind) if methods else None,
        encoders={method: partial(encode, kind, method) for method in methods},
        cpu_linear=partial(cpu_linear, kind),
        gpu_linear=partial(gpu_linear, kind) if methods else None,
    )


FORMATS = tuple(descriptor(kind) for kind in (*ENCODED, *IMPORTED))
