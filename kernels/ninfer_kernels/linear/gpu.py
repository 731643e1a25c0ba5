"""The launch of the Triton route. The block sizes are the fastest of a search on one H200 (docs/performance.md)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .kernel import few_rows_kernel

FEW_ROWS = 16  # the narrowest tile the tensor cores take; beyond it the vendor's library is as fast


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``reference.linear`` for 1 to FEW_ROWS rows. x: [T, K], its rows contiguous; weight: [N, K] contiguous."""
    (T, K), N = x.shape, weight.shape[0]
    out = torch.empty(T, N, dtype=x.dtype, device=x.device)
    BN, BK, stages = few_rows_blocks(N)
    few_rows_kernel[(triton.cdiv(N, BN),)](
        x, weight, out, T, N, K, x.stride(0), BT=FEW_ROWS, BN=BN, BK=BK, num_warps=4, num_stages=stages
    )
    return out


def few_rows_blocks(N: int) -> tuple[int, int, int]:
    """Outputs and inputs of a program, and the loads it keeps in flight."""
    return (64, 128, 4) if 8192 <= N < 32768 else (64, 128, 6)
