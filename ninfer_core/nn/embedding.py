"""Token tables: dense, or decoded row by row from the stored form, so that no dense copy exists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor, WeightFormat

from .stored_input import meant_rows


class DenseEmbedding:
    """Rows of a dense table [V, H], in its dtype."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self.table.index_select(0, token_ids)


class PackedEmbedding:
    """Rows of a table that lies packed on the device, in the activations' dtype."""

    def __init__(self, table: Any, dtype: torch.dtype) -> None:
        """table: an operation with ``take_rows``."""
        self.table, self.dtype = table, dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        rows: Tensor = self.table.take_rows(token_ids, self.dtype)
        return rows


class StoredEmbedding:
    """Rows of a table kept as stored on the host; a call decodes the rows it is asked for and no others."""

    def __init__(self, parts: Sequence[tuple[WeightFormat, EncodedTensor]], dtype: torch.dtype) -> None:
        """parts: the table's rows in order; dtype: of the activations."""
        self.parts = tuple(parts)
        self.dtype = dtype
        self._ends = tuple(accumulate(tensor.shape[0] for _, tensor in self.parts))

    def __call__(self, token_ids: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return self._rows(0, token_ids.tolist())
        out = torch.empty(len(token_ids), self.parts[0][1].shape[1], dtype=self.dtype)
        part_of = torch.bucketize(token_ids, torch.tensor(self._ends), right=True)
        for index in sorted(set(part_of.tolist())):
            mine = part_of == index
            first = self._ends[index - 1] if index else 0
            out[mine] = self._rows(index, (token_ids[mine] - first).tolist())
        return out

    def _rows(self, index: int, rows: list[int]) -> Tensor:
        weight_format, tensor = self.parts[index]
        decoded = weight_format.decode(weight_format.take_rows(tensor, rows))
        if tensor.input is not None:
            decoded = meant_rows(tensor.input, decoded)
        return decoded.to(self.dtype)
