"""Matrices that stay in their stored blocks: decoding, and products with fp32 activations on the CPU.

The native route multiplies by exactly the decoded weights and gives a row of activations the same bits whatever else
is in the call. Where it cannot run, torch multiplies by the decoded matrix instead: the same result to rounding, at
four bytes a weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import reference
from .planes import FORMATS, blocks_of, layout, why_not_blocks

if TYPE_CHECKING:
    from .jit import Native

CHUNK_VALUES = 32768  # weights a thread takes at once: 128 KiB decoded, which its second-level cache holds


@dataclass(frozen=True, slots=True)
class Matrix:
    """``rows`` x ``columns`` in one block format; ``data``: [bytes] uint8 on the host, kept as it is."""

    data: Tensor
    rows: int
    columns: int


@functools.cache
def why_not_native() -> str | None:
    """None when the native route works here, else the reason in a few words."""
    try:
        from ninfer_kernels.native import machine

        machine()
    except Exception as error:  # an absent or broken llvmlite, an unsupported processor
        return " ".join(str(error).split()) or type(error).__name__
    return None


def decode(format: str, data: Tensor, rows: int, columns: int) -> Tensor:
    """data: the matrix's bytes, uint8 -> [rows, columns] fp32, bit for bit the format's definition."""
    check_bytes(format, data, rows, columns)
    if why_not_native() is not None or why_not_blocks(format, columns) is not None:
        return reference.decode(format, data, rows, columns)
    from . import kernel

    width = padded(format, columns)
    out = torch.empty(rows, width)
    table = chunk_table(format, [Matrix(data, rows, columns)], chunk_rows(width))
    kernel.decode(format).together(
        kernel.slots(
            y=out.data_ptr(),
            chunks=table.data_ptr(),
            count=len(table),
            blocks=blocks_of(format, columns),
            strides=strides(format, columns),
        ),
        min(torch.get_num_threads(), len(table)),
    )
    return out if width == columns else out[:, :columns].contiguous()


def linear(format: str, matrices: Sequence[Matrix]) -> NativeLinear | TorchLinear:
    """The fastest route here for the stacked rows of matrices with one number of columns."""
    columns = {matrix.columns for matrix in matrices}
    if len(columns) != 1:
        raise ValueError(f"matrices of one input have {sorted(columns)} columns")
    for matrix in matrices:
        check_bytes(format, matrix.data, matrix.rows, matrix.columns)
    native = why_not_native() is None and why_not_blocks(format, *columns) is None
    return (NativeLinear if native else TorchLinear)(format, matrices)


def check_bytes(format: str, data: Tensor, rows: int, columns: int) -> None:
    """ValueError unless ``data`` holds such a matrix, byte after byte."""
    if data.numel() != layout(format, rows, columns)[1] or data.dtype != torch.uint8 or not data.is_contiguous():
        raise ValueError(f"{data.numel()} bytes are not {rows} x {columns} in {format}")


class NativeLinear:
    """x: [T, K] -> [T, rows] in x's dtype, computed in fp32 from the stored blocks by all of torch's threads."""

    def __init__(self, format: str, matrices: Sequence[Matrix]) -> None:
        from . import kernel

        self.format, self.columns = format, matrices[0].columns
        self.rows = sum(matrix.rows for matrix in matrices)
        self._kernel = kernel
        self._kept = [matrix.data for matrix in matrices]
        self._blocks = blocks_of(format, self.columns)
        self._width = padded(format, self.columns)
        self._strides = strides(format, self.columns)
        self._size = chunk_rows(self._width)
        self._chunks = chunk_table(format, matrices, self._size)
        self._count = self._chunks.shape[0]
        self._table = self._chunks.data_ptr()
        self._few: list[Native | None] = [None] * (kernel.FEW + 1)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self.columns:
            raise ValueError(f"activations are {tuple(x.shape)}; [T, {self.columns}] is expected")
        tokens, threads = x.shape[0], torch.get_num_threads()
        if not tokens:
            return x.new_empty(0, self.rows)
        plain = x.dtype is torch.float32
        if self._width != self.columns:
            source = torch.nn.functional.pad(x.float(), (0, self._width - self.columns))
        else:
            source = x if plain and x.is_contiguous() else x.float().contiguous()
        out = torch.empty(tokens, self.rows)
        if tokens <= self._kernel.FEW:
            native, address, floats = self._few[tokens] or self._compile(tokens), 0, 0
        else:
            floats = self._size * self._width
            scratch = torch.empty(threads * floats)
            native, address = self._kernel.many(self.format), scratch.data_ptr()
        # in the order of kernel.Arg, counters at zero; a decode round makes a hundred of these calls
        slots = self._kernel.SLOTS(
            source.data_ptr(),
            out.data_ptr(),
            self._table,
            self._count,
            0,
            self._blocks,
            self.rows,
            tokens,
            address,
            floats,
            0,
            *self._strides,
        )
        native.together(slots, min(threads, self._count))
        return out if plain else out.to(x.dtype)

    def _compile(self, tokens: int) -> Native:
        self._few[tokens] = native = self._kernel.few(self.format, tokens)
        return native


class TorchLinear:
    """The same product through torch, from weights decoded once."""

    def __init__(self, format: str, matrices: Sequence[Matrix]) -> None:
        self.format, self.columns = format, matrices[0].columns
        self.rows = sum(matrix.rows for matrix in matrices)
        parts = [reference.decode(format, matrix.data, matrix.rows, matrix.columns) for matrix in matrices]
        self._weights = torch.cat(parts).T

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self.columns:
            raise ValueError(f"activations are {tuple(x.shape)}; [T, {self.columns}] is expected")
        return (x.float() @ self._weights).to(x.dtype)


def padded(format: str, columns: int) -> int:
    """Columns of the blocks a row is read in; what lies past the last column meets zeros."""
    return blocks_of(format, columns) * FORMATS[format].values


def strides(format: str, columns: int) -> tuple[int, ...]:
    """Bytes from row to row in each plane; they do not depend on the number of rows."""
    return tuple(plane.stride for plane in layout(format, 1, columns)[0])


def chunk_rows(columns: int) -> int:
    """Rows of one chunk: about CHUNK_VALUES weights, whole register tiles."""
    return max(4, CHUNK_VALUES // columns // 4 * 4)


def chunk_table(format: str, matrices: Sequence[Matrix], size: int) -> Tensor:
    """[chunks, kernel.CHUNK] int64: address of the chunk's first block, its first output row, its rows, then what the
    kernel needs of the other planes."""
    entries: list[tuple[int, ...]] = []
    base = 0
    for matrix in matrices:
        codes, *others = layout(format, matrix.rows, matrix.columns)[0]
        start = matrix.data.data_ptr()
        for first in range(0, matrix.rows, size):
            if format == "nvfp4":
                more = [start + others[0].offset, first]
            else:
                more = [start + plane.offset + first * plane.stride for plane in others]
            rows = min(size, matrix.rows - first)
            entries.append((start + codes.offset + first * codes.stride, base + first, rows, *more, 0, 0)[:5])
        base += matrix.rows
    return torch.tensor(entries, dtype=torch.int64)
