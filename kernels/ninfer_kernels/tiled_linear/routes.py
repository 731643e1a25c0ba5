"""Stored matrices on a GPU as operations: packed bytes stay packed, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_kernels.device import gpu_route

from .packing import pack
from .tiles import TILE_ROWS, Tiles

FEW_ROWS = 32
"""Up to here the product reads packed bytes; more rows pay for numbers made once and read by the vendor's product."""

SCRATCH_BYTES = 64 << 20
"""Of numbers made at a time for many rows; what the allocator keeps beside the packed bytes."""


def linear(name: str, stored: Sequence[Sequence[Tensor]], columns: int, device: torch.device) -> TiledLinear | None:
    """The stacked rows of matrices of one format of ``tiles.FORMATS``, each as its parts (``packing.pack``); None where
    kernels cannot run."""
    if not runs_on(device):
        return None
    return TiledLinear(pack(name, stored, columns, device))


def runs_on(device: torch.device) -> bool:
    """Whether the kernels run there: a GPU whose tensor cores take bf16, and Triton."""
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    if on_nvidia and torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return gpu_route(torch.empty(0, device=device), __package__) is not None


class TiledLinear:
    """x: [T, K] -> [T, rows] in x's dtype, the product in bf16 with fp32 sums."""

    def __init__(self, tiles: Tiles) -> None:
        from . import gpu

        self.tiles, self.rows, self._gpu = tiles, tiles.rows, gpu
        self.nbytes = tiles.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self.into(x, torch.empty(x.shape[0], self.rows, dtype=x.dtype, device=x.device))

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """The product written to ``out`` [T, rows], whose rows may be parts of longer ones."""
        if x.dim() != 2 or x.shape[1] != self.tiles.columns:
            raise ValueError(f"activations are {tuple(x.shape)}; [T, {self.tiles.columns}] is expected")
        if not x.shape[0]:
            return out
        if x.dtype is not torch.bfloat16 and x.is_cuda:
            return out.copy_(self(x.bfloat16()))
        if x.stride(1) != 1:
            x = x.contiguous()
        return self._gpu.linear(x, self.tiles, out) if x.shape[0] <= FEW_ROWS else self._many(x, out)

    def take_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the matrix itself: ids [T] int64 -> [T, K]."""
        return self._gpu.take_rows(self.tiles, ids, dtype)

    def _many(self, x: Tensor, out: Tensor) -> Tensor:
        """Some tiles at a time become a matrix."""
        step = max(1, SCRATCH_BYTES // (x.element_size() * self.tiles.columns * TILE_ROWS)) * TILE_ROWS
        scratch = torch.empty(min(step, self.rows), self.tiles.columns, dtype=x.dtype, device=x.device)
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            rows = self._gpu.decode(self.tiles, first // TILE_ROWS, scratch[: last - first])
            torch.mm(x, rows.t(), out=out[:, first:last])
        return out
