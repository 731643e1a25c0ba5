"""The launch of the Triton route."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv

from .kernel import WIDEST, rotate_kernel

ROWS = 4  # of a program


def serves(x: Tensor) -> bool:
    """Whether the kernel takes it: something to turn, of a dimension it is written out for."""
    D = x.shape[-1]
    return x.numel() > 0 and 2 <= D <= WIDEST and D & (D - 1) == 0


def rotate(x: Tensor) -> Tensor:
    """``reference.rotate``."""
    D = x.shape[-1]
    rows = x.reshape(-1, D)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    grid = (cdiv(len(rows), ROWS),)
    launch_kernel(rotate_kernel, grid, rows, y, len(rows), rows.stride(0), D=D, BR=ROWS, num_warps=4, **pdl.options(x))
    return y
