"""Matrices stored for a changed input: rotated by a Hadamard transform, or with their columns in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import StoredInput
from ninfer_core.api.nn import Linear
from ninfer_kernels import hadamard

BLOCK = 1024  # elements one rotation mixes


class ChangedInputLinear:
    """An operation over stored rows, given what they multiply in place of ``x``."""

    def __init__(self, operation: Linear, change: StoredInput, device: torch.device) -> None:
        self.operation = operation
        self.rows = operation.rows
        self._signs = None if change.signs is None else change.signs.to(device)
        self._columns = None if change.columns is None else change.columns.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._columns is not None:
            return self.operation(x.index_select(1, self._columns))
        if self._signs is not None:
            return self.operation(rotated(x * self._signs)).to(x.dtype)
        return self.operation(x)


def rotated(x: Tensor) -> Tensor:
    """``(1/32) H`` times every 1024 elements of x [T, K], in fp32."""
    blocks: Tensor = hadamard.rotate(x.float().view(-1, BLOCK))
    return blocks.view(x.shape)


def meant_rows(change: StoredInput, rows: Tensor) -> Tensor:
    """Stored rows [R, K] fp32 as the matrix they stand for, which multiplies ``x`` itself."""
    if change.columns is not None:
        return torch.empty_like(rows).index_copy_(1, change.columns, rows)
    if change.signs is not None:
        return rotated(rows) * change.signs
    return rows
