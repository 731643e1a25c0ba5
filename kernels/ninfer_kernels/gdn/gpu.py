"""The launches of the Triton route, for steps whose rows are short. Signatures and results are the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from .kernel import conv_kernel, gates_kernel, rule_kernel
from .rows import Rows

FEW = 64  # tokens of a row; longer rows are the business of the chunked form
CHANNELS = 256  # of a convolution's program
GATES = 256  # of a program
STATE_ROWS = 32  # of a rule's program


def serves(rows: Rows, part: Tensor) -> bool:
    """Whether the kernels take such rows with such states: any histories [slots, J - 1, C]; matrices [slots, H, V, K]
    of a key dimension that is a power of two."""
    K = part.shape[-1] if part.dim() == 4 else 16
    return 0 < rows.width <= FEW and K & (K - 1) == 0


def conv_step(
    x_TC: Tensor, part: Tensor, weight_JC: Tensor, rows: Rows, *, provisional: bool
) -> tuple[Tensor, Tensor | None]:
    """``reference.conv_step``."""
    y = torch.empty(x_TC.shape, dtype=x_TC.dtype, device=x_TC.device)
    _conv(x_TC, part, weight_JC, y, rows, rows.on_device.widths, advance=not provisional)
    return y, x_TC if provisional else None


def conv_fold(record: Tensor, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.conv_fold``."""
    _conv(record, part, None, None, rows, rows.counts(kept), advance=True)


def _conv(
    x_TC: Tensor,
    part: Tensor,
    weight_JC: Tensor | None,
    y: Tensor | None,
    rows: Rows,
    widths: Tensor,
    *,
    advance: bool,
) -> None:
    """Without weights and outputs the histories move and no more."""
    x = x_TC if x_TC.stride(1) == 1 else x_TC.contiguous()
    taps, C = part.shape[1] + 1, part.shape[2]
    grid = (triton.cdiv(C, CHANNELS), len(rows.slots))
    on = rows.on_device
    conv_kernel[grid](
        x, part, x if weight_JC is None else weight_JC, x if y is None else y,
        on.firsts, widths, on.slots, C, x.stride(0),
        TAPS=taps, BC=CHANNELS, OUTPUT=y is not None, ADVANCE=advance, num_warps=4,
    )  # fmt: skip


def gates(a_TH: Tensor, b_TH: Tensor, a_log_H: Tensor, dt_bias_H: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.gates``; heads of a token contiguous."""
    T, H = a_TH.shape
    g, beta = (torch.empty(T, H, dtype=torch.float32, device=a_TH.device) for _ in range(2))
    gates_kernel[(triton.cdiv(T * H, GATES),)](
        a_TH, b_TH, a_log_H, dt_bias_H, g, beta, T * H, a_TH.stride(0), b_TH.stride(0), H=H, BLOCK=GATES, num_warps=4
    )
    return g, beta


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
    record = (*(_rows_contiguous(x) for x in (q_TGK, k_TGK, v_THV)), g_TH.contiguous(), beta_TH.contiguous())
    o = torch.empty(v_THV.shape, dtype=torch.float32, device=v_THV.device)
    _rule(record, part, o, rows, rows.on_device.widths, output=True, advance=not provisional)
    return o, record if provisional else None


def rule_fold(record: Any, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.rule_fold``."""
    _rule(record, part, record[0], rows, rows.counts(kept), output=False, advance=True)


def _rule(
    record: tuple[Tensor, ...], part: Tensor, o: Tensor, rows: Rows, widths: Tensor, *, output: bool, advance: bool
) -> None:
    q, k, v, g, beta = record
    (G, K), (H, V) = k.shape[1:], v.shape[1:]
    block = min(STATE_ROWS, triton.next_power_of_2(V))
    rule_kernel[(H * triton.cdiv(V, block), len(rows.slots))](
        q, k, v, g, beta, part, o,
        rows.on_device.firsts, widths, rows.on_device.slots, q.stride(0), k.stride(0), v.stride(0),
        G=G, H=H, K=K, V=V, BV=block, OUTPUT=output, ADVANCE=advance, num_warps=4,
    )  # fmt: skip


def _rows_contiguous(x: Tensor) -> Tensor:
    """A view of a stacked projection is read in place when each token's part is contiguous."""
    inner = x[0] if x.shape[0] else x
    return x if inner.is_contiguous() else x.contiguous()
