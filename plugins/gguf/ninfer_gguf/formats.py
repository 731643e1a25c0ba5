"""The ggml block formats as weight formats: bytes exactly as the file stores them (layout ``gguf_blocks_v1``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ninfer_core.api import EncodedTensor, WeightFormat

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.api.nn import Linear

LAYOUT = "gguf_blocks_v1"
PUBLISHED = {"q4_0": True, "q4_1": False, "q5_0": True, "q5_1": False, "q8_0": True, "q4_k": True, "q6_k": True}


def encoded_bytes(block: str, shape: tuple[int, ...]) -> int:
    """Rows of whole blocks; ValueError for a shape that is not [rows, columns] with columns in whole blocks."""
    from ninfer_kernels.quant_linear import row_bytes

    if len(shape) != 2 or shape[0] <= 0:
        raise ValueError(f"gguf_{block} holds matrices [rows, columns], not a tensor of shape {list(shape)}")
    return shape[0] * row_bytes(block, shape[1])


def decode(block: str, tensor: EncodedTensor) -> Tensor:
    """fp32 of the logical shape, by the format's definition (``spec/artifact.md`` §11.5)."""
    from ninfer_kernels.quant_linear import decode

    rows, columns = tensor.shape
    return decode(block, tensor.data, rows, columns)


def take_rows(block: str, tensor: EncodedTensor, rows: Sequence[int]) -> EncodedTensor:
    """The encoded rows in that order: a view for one run of rows, else a copy. IndexError for a row that is missing."""
    from ninfer_kernels.quant_linear import row_bytes

    count, columns = tensor.shape
    if not rows or min(rows) < 0 or max(rows) >= count:
        raise IndexError(f"rows are 0..{count - 1}")
    step = row_bytes(block, columns)
    first, taken = rows[0], len(rows)
    if taken == 1 or all(row == first + i for i, row in enumerate(rows)):
        data = tensor.data[first * step : (first + taken) * step]
    else:
        import torch

        data = tensor.data.view(count, step).index_select(0, torch.tensor(rows)).flatten()
    return EncodedTensor(format=tensor.format, layout=LAYOUT, shape=(taken, columns), data=data)


def cpu_linear(block: str, tensors: Sequence[EncodedTensor]) -> Linear:
    """The stacked rows as one operation on the stored blocks."""
    from ninfer_kernels.quant_linear import Matrix, linear

    return linear(block, [Matrix(tensor.data, tensor.shape[0], tensor.shape[1]) for tensor in tensors])


FORMATS = tuple(
    WeightFormat(
        name=f"gguf_{block}",
        layout=LAYOUT,
        encoded_bytes=partial(encoded_bytes, block),
        decode=partial(decode, block),
        take_rows=partial(take_rows, block),
        cpu_linear=partial(cpu_linear, block),
        published=published,
    )
    for block, published in PUBLISHED.items()
)
