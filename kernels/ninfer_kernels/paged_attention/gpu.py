"""The launch of the Triton route: blocks and shares for the shape of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2
from ninfer_kernels.tuning import Blocks, Facts, table

from .blocks import ATTEND, MANY_QUERIES
from .kernel import PAGE, attend_kernel, decode_cast, merge_kernel
from .layout import Rows, Stored

SHARES_TOKENS = 256  # a step wider than this has programs enough without sharing out pages
WIDE_BLOCK = 128  # queries a program takes in prefill,
BLOCK_BYTES = {2: 64 << 10, 4: 16 << 10}  # by element size: what shared memory holds beside keys and values,
AMPLE_SHARED = 160 << 10  # where a program can have this much of it; a quarter elsewhere


def serves(q_THD: Tensor, keys: Stored, values: Stored) -> bool:
    """Whether there is a kernel for this head dimension and stored form."""
    D = q_THD.shape[2]
    return D >= 16 and D & (D - 1) == 0 and _decoder(keys) is not None and _decoder(values) is not None


def attend(
    q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """``reference.attend``; products in q's dtype, everything else fp32. q: [T, H, D] -> [T, H, D]."""
    H, D = q_THD.shape[1:]
    BQ = queries_of_a_program(rows.widest * (H // keys.heads), D, q_THD.element_size(), table(q_THD.device).facts)
    # one choice for few queries, so that every width of a verify round sums in one order
    few = 16 if BQ < MANY_QUERIES else BQ
    chosen = ATTEND.blocks(q_THD.device, H=H, G=keys.heads, D=D, BQ=few, bytes=q_THD.element_size())
    return launch(q_THD, keys, values, rows, scale, BQ, chosen, out_dtype)


def launch(
    q_THD: Tensor,
    keys: Stored,
    values: Stored,
    rows: Rows,
    scale: float,
    BQ: int,
    chosen: Blocks,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``attend`` with ``BQ`` queries and the ``chosen`` blocks in a program."""
    T, H, D = q_THD.shape
    G = keys.heads
    if q_THD.stride()[1:] != (D, 1):
        q_THD = q_THD.contiguous()
    blocks = cdiv(rows.widest * (H // G), BQ)
    shares = share_count(len(rows) * blocks * G, rows.page_table.shape[1], T, chosen["programs"])
    out = torch.empty(T, H, D, dtype=out_dtype, device=q_THD.device)
    partial = logsum = out
    if shares > 1:
        partial = torch.empty(T, H, shares, D, dtype=torch.float32, device=q_THD.device)
        logsum = torch.empty(T, H, shares, dtype=torch.float32, device=q_THD.device)
    firsts, widths, frontiers = rows.on_device()
    launch_kernel(
        attend_kernel,
        (len(rows) * blocks, G, shares),
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
        num_warps=chosen["num_warps"],
        num_stages=chosen["num_stages"],
        **pdl.options(q_THD),
    )
    if shares > 1:
        BS = next_power_of_2(shares)
        launch_kernel(
            merge_kernel, (T * H,), partial, logsum, out, D=D, SHARES=shares, BS=BS, num_warps=4, **pdl.options(out)
        )
    return out


def queries_of_a_program(wide: int, D: int, element_bytes: int, facts: Facts) -> int:
    """``wide``: the queries a KV head has in the step's widest row."""
    room = BLOCK_BYTES[element_bytes] // (1 if facts.shared_bytes >= AMPLE_SHARED else 4)
    most = min(WIDE_BLOCK, max(16, room // (D * element_bytes)))
    return min(most, max(16, next_power_of_2(wide)))


def share_count(programs: int, pages: int, tokens: int, wanted: int) -> int:
    """How many ways a row's pages are shared out: ``wanted`` programs fill the GPU, at least a page each."""
    if tokens > SHARES_TOKENS:
        return 1
    return max(1, min(wanted // max(programs, 1), pages))


def _planes(side: Stored) -> tuple[Tensor, Tensor]:
    return side.planes[0], side.planes[-1]


def _decoder(side: Stored) -> Any:
    """The codec's device function, or None."""
    if side.device_decode is not None:
        return side.device_decode()
    return decode_cast if side.is_cast else None
