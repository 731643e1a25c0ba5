"""The launch of the Triton route: blocks and shares for the shape of a step."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .kernel import PAGE, attend_kernel, decode_cast, merge_kernel
from .layout import Rows, Stored

SHARES_TOKENS = 256  # a step wider than this has programs enough without sharing out pages
PROGRAMS = 264  # two for each multiprocessor of a large GPU
WIDE_BLOCK = 128  # queries a program takes in prefill,
BLOCK_BYTES = {2: 64 << 10, 4: 16 << 10}  # by element size: what shared memory holds beside keys and values


def serves(q_THD: Tensor, keys: Stored, values: Stored) -> bool:
    """Whether there is a kernel for this head dimension and stored form."""
    D = q_THD.shape[2]
    return D >= 16 and D & (D - 1) == 0 and _decoder(keys) is not None and _decoder(values) is not None


def attend(q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float) -> Tensor:
    """``reference.attend``; products in q's dtype, everything else fp32. q: [T, H, D] -> [T, H, D] fp32."""
    T, H, D = q_THD.shape
    G = keys.heads
    if q_THD.stride()[1:] != (D, 1):
        q_THD = q_THD.contiguous()
    wide = rows.widest * (H // G)
    most = min(WIDE_BLOCK, max(16, BLOCK_BYTES[q_THD.element_size()] // (D * q_THD.element_size())))
    BQ = min(most, max(16, triton.next_power_of_2(wide)))
    blocks = triton.cdiv(wide, BQ)
    shares = share_count(len(rows) * blocks * G, rows.page_table.shape[1], T)
    out = torch.empty(T, H, D, dtype=torch.float32, device=q_THD.device)
    partial = logsum = out
    if shares > 1:
        partial = torch.empty(T, H, shares, D, dtype=torch.float32, device=q_THD.device)
        logsum = torch.empty(T, H, shares, dtype=torch.float32, device=q_THD.device)
    firsts, widths, frontiers = rows.on_device()
    attend_kernel[(len(rows) * blocks, G, shares)](
        q_THD,
        *_planes(keys),
        *_planes(values),
        out,
        partial,
        logsum,
        rows.page_table,
        firsts,
        widths,
        frontiers,
        scale,
        q_THD.stride(0),
        rows.page_table.stride(0),
        blocks,
        H=H,
        G=G,
        D=D,
        BQ=BQ,
        SHARES=shares,
        P=PAGE,
        DECODE_K=_decoder(keys),
        DECODE_V=_decoder(values),
        # fp32 operands mean that fp32 is wanted, not tf32
        PRECISION="ieee",
        num_warps=8 if BQ >= 64 else 4,
        num_stages=1 if q_THD.element_size() == 4 else 2,
    )
    if shares > 1:
        merge_kernel[(T * H,)](partial, logsum, out, D=D, SHARES=shares, BS=triton.next_power_of_2(shares), num_warps=4)
    return out


def share_count(programs: int, pages: int, tokens: int) -> int:
    """How many ways a row's pages are shared out: enough programs to fill the GPU, at least a page each."""
    if tokens > SHARES_TOKENS:
        return 1
    return max(1, min(PROGRAMS // max(programs, 1), pages))


def _planes(side: Stored) -> tuple[Tensor, Tensor]:
    return side.planes[0], side.planes[-1]


def _decoder(side: Stored) -> Any:
    """The codec's device function, or None."""
    if side.device_decode is not None:
        return side.device_decode()
    return decode_cast if side.is_cast else None
