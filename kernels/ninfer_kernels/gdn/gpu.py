"""The launches of the Triton route, for steps whose rows are short. Signatures and results are the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from .kernel import conv_kernel, rule_kernel
from .rows import Rows

FEW = 64  # tokens of a row; longer rows are the business of the chunked form
CHANNELS = 256  # of a convolution's program
STATE_ROWS = 32  # of a rule's program


def serves(rows: Rows, dim: int = 16) -> bool:
    """Whether the kernels take such rows, and a key dimension ``dim``."""
    return rows.width <= FEW and dim >= 16 and dim & (dim - 1) == 0


def conv_step(
    x_TC: Tensor, part: Tensor, weight_JC: Tensor, rows: Rows, *, provisional: bool
) -> tuple[Tensor, Tensor | None]:
    """``reference.conv_step``."""
    y = torch.empty(x_TC.shape, dtype=x_TC.dtype, device=x_TC.device)
    _conv(x_TC, part, weight_JC, y, rows, rows.on_device.widths, output=True, advance=not provisional)
    return y, x_TC if provisional else None


def conv_fold(record: Tensor, part: Tensor, weight_JC: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.conv_fold``; the weights are not read."""
    counts = torch.as_tensor(kept, device=part.device)
    _conv(record, part, weight_JC, record, rows, counts, output=False, advance=True)


def _conv(
    x_TC: Tensor, part: Tensor, weight_JC: Tensor, y: Tensor, rows: Rows, widths: Tensor, *, output: bool, advance: bool
) -> None:
    x = x_TC if x_TC.stride(1) == 1 else x_TC.contiguous()
    J, C = weight_JC.shape
    grid = (triton.cdiv(C, CHANNELS), len(rows.slots))
    conv_kernel[grid](
        x, part, weight_JC, y, rows.on_device.firsts, widths, rows.on_device.slots, C, x.stride(0),
        TAPS=J, BC=CHANNELS, OUTPUT=output, ADVANCE=advance, num_warps=4,
    )  # fmt: skip


def rule_step(
    q_TGK: Tensor,
    k_TGK: Tensor,
    v_THV: Tensor,
    g_TH: Tensor,
    beta_TH: Tensor,
    part: Tensor,
    rows: Rows,
    *,
    provisional: bool,
) -> tuple[Tensor, Any]:
    """``reference.rule_step``."""
    record = tuple(_rows_contiguous(x) for x in (q_TGK, k_TGK, v_THV, g_TH, beta_TH))
    o = torch.empty(v_THV.shape, dtype=torch.float32, device=v_THV.device)
    _rule(record, part, o, rows, rows.on_device.widths, output=True, advance=not provisional)
    return o, record if provisional else None


def rule_fold(record: Any, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.rule_fold``."""
    counts = torch.as_tensor(kept, device=part.device)
    _rule(record, part, record[0], rows, counts, output=False, advance=True)


def _rule(
    record: tuple[Tensor, ...], part: Tensor, o: Tensor, rows: Rows, widths: Tensor, *, output: bool, advance: bool
) -> None:
    q, k, v, g, beta = record
    (G, K), (H, V) = k.shape[1:], v.shape[1:]
    block = min(STATE_ROWS, triton.next_power_of_2(V))
    rule_kernel[(H * triton.cdiv(V, block), len(rows.slots))](
        q, k, v, g, beta, part, o, rows.on_device.firsts, widths, rows.on_device.slots, q.stride(0), k.stride(0), v.stride(0),
        G=G, H=H, K=K, V=V, BV=block, OUTPUT=output, ADVANCE=advance, num_warps=4,
    )  # fmt: skip


def _rows_contiguous(x: Tensor) -> Tensor:
    """A view of a stacked projection is read in place when each token's part is contiguous."""
    inner = x[0] if x.shape[0] else x
    return x if inner.is_contiguous() else x.contiguous()
