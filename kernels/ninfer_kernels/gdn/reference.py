"""The definition of Gated DeltaNet, in plain torch and fp32: one sequence, one token at a time.

Source: Yang et al. 2024, "Gated Delta Networks"; Qwen3.5's q scale, eps and grouping of heads. A state S is [H, V, K]
fp32: value row by key column, so that a product with a key reads contiguous memory. Legend: see ``rows``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ninfer_kernels.norm import reference as norm

from .layer import Layer, Parts, Tape
from .rows import Rows

UNIT_EPS = 1e-6
FP16_MAX = 65504.0


def causal_conv(x_TC: Tensor, history_NC: Tensor, weight_JC: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise convolution over each token and the J - 1 before it, then SiLU; in fp32, one rounding at the end.

    history: the N = J - 1 rows before the first token, oldest first; weight: tap 0 is the oldest. Returns y [T, C] in
    x's dtype and the history after the last token, in its own dtype.
    """
    full = torch.cat((history_NC.to(x_TC.dtype), x_TC))
    taps = weight_JC.shape[0]
    y = torch.zeros(x_TC.shape, device=x_TC.device)
    for j in range(taps):
        y = y + weight_JC[j] * full[j : j + x_TC.shape[0]].float()
    return F.silu(y).to(x_TC.dtype), full[full.shape[0] - taps + 1 :].to(history_NC.dtype)


def gates(a_TH: Tensor, b_TH: Tensor, a_log_H: Tensor, dt_bias_H: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay ``-exp(A) softplus(a + dt)`` (at most 0) and write strength ``sigmoid(b)``, [T, H] fp32."""
    return -a_log_H.exp() * F.softplus(a_TH.float() + dt_bias_H), torch.sigmoid(b_TH.float())


def unit(x: Tensor) -> Tensor:
    """``x / sqrt(sum(x^2) + 1e-6)`` over the last dimension, fp32."""
    v = x.float()
    return v * torch.rsqrt(v.square().sum(-1, keepdim=True) + UNIT_EPS)


def heads_of(x_TGK: Tensor, heads: int) -> Tensor:
    """Value head ``j`` reads key head ``j // (H / G)``: [..., G, K] -> [..., H, K]."""
    return x_TGK.repeat_interleave(heads // x_TGK.shape[-2], dim=-2)


def delta_rule(
    q_TGK: Tensor, k_TGK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_HVK: Tensor
) -> tuple[Tensor, Tensor]:
    """Per token: ``S = e^g S;  u = beta (v - S k);  S = S + u k^T;  o = S q``, q and k of unit length, q scaled by
    K^-0.5.

    Returns o [T, H, V] fp32 and the state after the last token, [H, V, K] fp32.
    """
    H, K = v_THV.shape[1], k_TGK.shape[-1]
    q_THK, k_THK = heads_of(unit(q_TGK) * K**-0.5, H), heads_of(unit(k_TGK), H)
    S = state_HVK.float()
    out = []
    for t in range(v_THV.shape[0]):
        S = g_TH[t].exp()[:, None, None] * S
        k, q = k_THK[t], q_THK[t]
        u = beta_TH[t][:, None] * (v_THV[t].float() - (S * k[:, None, :]).sum(-1))
        S = S + u[:, :, None] * k[:, None, :]
        out.append((S * q[:, None, :]).sum(-1))
    return torch.stack(out), S


def stored(state: Tensor, dtype: torch.dtype) -> Tensor:
    """An fp32 state as it is kept between steps; fp16 holds what lies beyond its range as its largest number."""
    return state.clamp(-FP16_MAX, FP16_MAX).to(dtype) if dtype is torch.float16 else state.to(dtype)


# rows of a step


def conv_step(
    x_TC: Tensor, part: Tensor, weight_JC: Tensor, rows: Rows, *, provisional: bool
) -> tuple[Tensor, Tensor | None]:
    """``causal_conv`` of every row from its history in ``part`` [slots, J - 1, C]: y [T, C], and the record."""
    out = []
    for b, slot in enumerate(rows.slots):
        y, after = causal_conv(x_TC[rows.starts[b] : rows.starts[b + 1]], part[slot], weight_JC)
        out.append(y)
        if not provisional:
            part[slot] = after
    return torch.cat(out), x_TC if provisional else None


def conv_fold(record: Tensor, part: Tensor, rows: Rows, kept: Sequence[int]) -> None:
    """Advance each row's history over its first ``kept[b]`` tokens."""
    for b, slot in enumerate(rows.slots):
        fed = record[rows.starts[b] : rows.starts[b] + kept[b]].to(part.dtype)
        part[slot] = torch.cat((part[slot], fed))[kept[b] :]


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
    """``delta_rule`` of every row from its state in ``part`` [slots, H, V, K]: o [T, H, V] fp32, and the record."""
    inputs = (q_TGK, k_TGK, v_THV, g_TH, beta_TH)
    out = []
    for b, slot in enumerate(rows.slots):
        o, after = delta_rule(*(x[rows.starts[b] : rows.starts[b + 1]] for x in inputs), part[slot])
        out.append(o)
        if not provisional:
            part[slot] = stored(after, part.dtype)
    return torch.cat(out), inputs if provisional else None


def rule_fold(record: Any, part: Tensor, rows: Rows, kept: Sequence[int]) -> None:
    """Advance each row's state over its first ``kept[b]`` tokens; 0 leaves its bits alone."""
    for b, slot in enumerate(rows.slots):
        if kept[b]:
            start = rows.starts[b]
            _, after = delta_rule(*(x[start : start + kept[b]] for x in record), part[slot])
            part[slot] = stored(after, part.dtype)


# whole layers


def step(
    mixed: Tensor, ab: Tensor, layer: Layer, parts: Parts, at: int, rows: Rows, tape: Tape | None = None
) -> Tensor:
    """What layer ``at`` of ``parts`` says of a step, [T, H * V]: convolution, delta rule, then the norm of each head's
    output, gated by z.

    mixed: [T, C + H * V], the channels of q, k and v, then z; ab: [T, 2 * H], the inputs of decay and strength. With a
    ``tape`` the states stay as they are and the tape keeps what ``fold`` needs.
    """
    return composed(sys.modules[__name__], norm.gated_rms_norm, mixed, ab, layer, parts, at, rows, tape)


def fold(tape: Tape, parts: Parts, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """Advance the states of all layers over the first ``kept[b]`` tokens of each row."""
    fold_each(sys.modules[__name__], tape, parts, rows, kept)


def keep_last(x_TN: Tensor, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """Write the row of ``x`` that belongs to each sequence's last kept token to its slot of ``part`` [slots, N]; a
    sequence that keeps nothing leaves its bits alone."""
    counts = kept.tolist() if isinstance(kept, Tensor) else kept
    for b, slot in enumerate(rows.slots):
        if counts[b]:
            part[slot] = x_TN[rows.starts[b] + counts[b] - 1]


def composed(
    ops: Any,
    gated_rms_norm: Callable[..., Tensor],
    mixed: Tensor,
    ab: Tensor,
    layer: Layer,
    parts: Parts,
    at: int,
    rows: Rows,
    tape: Tape | None,
) -> Tensor:
    """``step`` made of the operations of ``ops``, this module or one that offers the same."""
    provisional, H, G, K = tape is not None, layer.value_heads, layer.key_heads, layer.key_dim
    qkv, z = mixed.split((layer.channels, layer.value_width), dim=-1)
    y, conv_record = ops.conv_step(qkv, parts.histories[at], layer.convolution, rows, provisional=provisional)
    q, k, v = y.split((layer.key_width, layer.key_width, layer.value_width), dim=-1)
    o, record = ops.rule_step(
        q.unflatten(-1, (G, K)),
        k.unflatten(-1, (G, K)),
        v.unflatten(-1, (H, layer.value_dim)),
        *gates(*ab.split(H, dim=-1), layer.a_log, layer.dt_bias),
        parts.states[at],
        rows,
        provisional=provisional,
    )
    if tape is not None:
        tape.records[at] = (conv_record, record)
    return gated_rms_norm(o, z.unflatten(-1, (H, layer.value_dim)), layer.norm, layer.eps).flatten(1)


def fold_each(ops: Any, tape: Tape, parts: Parts, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``fold`` made of the operations of ``ops``."""
    counts = kept.tolist() if isinstance(kept, Tensor) else kept
    for (conv_record, record), history, state in zip(tape.records, parts.histories, parts.states, strict=True):
        ops.conv_fold(conv_record, history, rows, counts)
        ops.rule_fold(record, state, rows, counts)
