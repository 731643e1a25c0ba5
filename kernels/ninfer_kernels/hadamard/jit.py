"""The rotation compiled by numba. No fast-math flag: every sum is formed as the reference forms it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_kernels.compiled import njit


@njit()
def rotate_rows(x: Any, factor: float) -> None:
    """In place: x [R, D] fp32 contiguous becomes ``H_D x`` with D a power of two and factor ``D^-1/2``."""
    rows, head_dim = x.shape
    scale = np.float32(factor)
    for r in range(rows):
        stride = 1
        while stride < head_dim:
            for start in range(0, head_dim, 2 * stride):
                for i in range(start, start + stride):
                    a, b = x[r, i], x[r, i + stride]
                    x[r, i], x[r, i + stride] = a + b, a - b
            stride *= 2
        for i in range(head_dim):
            x[r, i] *= scale
