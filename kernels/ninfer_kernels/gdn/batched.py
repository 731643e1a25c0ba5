"""Gated DeltaNet as batched torch, on any device and without a loop over tokens.

Up to ``CHUNK`` tokens a row, all rows run as one batch of a single chunk, padded to the longest. A longer row is
solved chunk by chunk, everything but the pass over the states at once. Nothing but rounding distinguishes the forms.
Source: Yang et al. 2024, "Gated Delta Networks", section 3.3 (the UT transform).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .reference import heads_of, stored, unit
from .rows import CHUNK, Rows


def conv_step(
    x_TC: Tensor, part: Tensor, weight_JC: Tensor, rows: Rows, *, provisional: bool
) -> tuple[Tensor, Tensor | None]:
    """``reference.conv_step``."""
    if rows.equal:
        y, after = _conv(x_TC.view(len(rows.slots), rows.width, -1), rows.images(part), weight_JC)
        if not provisional:
            rows.put(part, after)
        return y.flatten(0, 1), x_TC if provisional else None
    pieces = x_TC.split(rows.lengths)
    done = [conv_step(x, part, weight_JC, rows.one(b), provisional=provisional)[0] for b, x in enumerate(pieces)]
    return torch.cat(done), x_TC if provisional else None


def _conv(x_BWC: Tensor, history_BNC: Tensor, weight_JC: Tensor) -> tuple[Tensor, Tensor]:
    full = torch.cat((history_BNC.float(), x_BWC.float()), dim=1)
    taps, width = weight_JC.shape[0], x_BWC.shape[1]
    y = full[:, :width] * weight_JC[0]
    for j in range(1, taps):
        y.addcmul_(full[:, j : j + width], weight_JC[j])
    return F.silu(y, inplace=True).to(x_BWC.dtype), full[:, width:]


def conv_fold(record: Tensor, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.conv_fold``."""
    kept = _on_host(kept)
    moved = [b for b, count in enumerate(kept) if count]
    if not moved:
        return
    mine = rows.chosen(moved)
    full = [torch.cat((part[rows.slots[b]], record[rows.starts[b] : rows.starts[b] + kept[b]].to(part))) for b in moved]
    mine.put(part, torch.stack([own[own.shape[0] - part.shape[1] :] for own in full]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """What each token would add to its row's state: ``u k^T``, after the decay from there on."""

    u: Tensor  # [B, H, W, V]
    k: Tensor  # [B, H, W, K]
    decay: Tensor  # [B, H, W] log decay from the state before the step, cumulative


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
    """``reference.rule_step``. A provisional step of rows beyond one chunk keeps the rows' states instead of writes."""
    inputs = (q_TGK, k_TGK, v_THV, g_TH, beta_TH)
    if rows.width <= CHUNK:
        o, writes = _one_chunk(*inputs, rows.images(part).float(), rows)
        if not provisional:
            _advance(writes, part, rows, rows.lengths)
        return o, writes if provisional else None
    out = []
    for b, own in enumerate(zip(*(x.split(rows.lengths) for x in inputs), strict=True)):
        mine = rows.one(b)
        o, after = _chunks(*own, mine.images(part)[0].float())
        if not provisional:
            mine.put(part, stored(after, part.dtype)[None])
        out.append(o)
    return torch.cat(out), inputs if provisional else None


def rule_fold(record: Any, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.rule_fold``."""
    kept = _on_host(kept)
    if isinstance(record, Writes):
        _advance(record, part, rows, kept)
        return
    for b, own in enumerate(zip(*(x.split(rows.lengths) for x in record), strict=True)):
        if kept[b]:
            taken, mine = [x[: kept[b]] for x in own], rows.one(b)
            _, after = _chunks(*taken, mine.images(part)[0].float())
            mine.put(part, stored(after, part.dtype)[None])


def _on_host(kept: Sequence[int] | Tensor) -> Sequence[int]:
    return kept.tolist() if isinstance(kept, Tensor) else kept


def _one_chunk(
    q_TGK: Tensor, k_TGK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_BHVK: Tensor, rows: Rows
) -> tuple[Tensor, Writes]:
    """All rows at once: the outputs, and what would be written."""
    H, K, W = v_THV.shape[1], k_TGK.shape[-1], rows.width
    q, k = (heads_of(rows.pad(unit(x)), H).transpose(1, 2) for x in (q_TGK, k_TGK))
    v = rows.pad(v_THV).transpose(1, 2).float()
    g, beta = (rows.silence(rows.pad(x)).transpose(1, 2) for x in (g_TH, beta_TH))
    decay = g.cumsum(-1)  # [B, H, W]
    reads = torch.cat((k, q), dim=2) @ state_BHVK.transpose(-1, -2)  # [B, H, 2W, V]
    reads *= torch.cat((decay, decay), dim=-1).exp_()[..., None]
    u = beta[..., None] * (v - reads[:, :, :W])
    if W > 1:
        between = _between(decay)
        lower = (k @ k.transpose(-1, -2)).mul_(between).mul_(beta[..., None])
        u = torch.linalg.solve_triangular(lower, u, upper=False, unitriangular=True)
        within = ((q @ k.transpose(-1, -2)) * between) @ u
    else:
        within = (q * k).sum(-1, keepdim=True) * u
    o = (reads[:, :, W:] + within).mul_(K**-0.5)
    return rows.unpad(o.transpose(1, 2)), Writes(u=u, k=k, decay=decay)


def _advance(writes: Writes, part: Tensor, rows: Rows, kept: Sequence[int]) -> None:
    """Move the rows' states over their first ``kept[b]`` tokens."""
    moved = [b for b, count in enumerate(kept) if count]
    if not moved:
        return
    u, k, decay = writes.u, writes.k, writes.decay
    mine = rows
    if len(moved) < len(kept):
        mine = rows.chosen(moved)
        u, k, decay = (x[moved] for x in (u, k, decay))
    counts = torch.tensor([kept[b] for b in moved], device=u.device)
    last = decay.gather(-1, (counts - 1)[:, None, None].expand(-1, decay.shape[1], 1))  # [B, H, 1]
    later = torch.arange(u.shape[2], device=u.device) >= counts[:, None, None]
    share = (last - decay).masked_fill(later, float("-inf")).exp_()
    images = mine.images(part)
    state = images if images.dtype is torch.float32 else images.float()
    state.mul_(last.exp_()[..., None])
    flat = state.view(-1, *state.shape[2:])
    flat.baddbmm_((u * share[..., None]).flatten(0, 1).transpose(1, 2), k.flatten(0, 1))
    mine.put(part, state if state is images else stored(state, part.dtype))


def _chunks(
    q_TGK: Tensor, k_TGK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_HVK: Tensor
) -> tuple[Tensor, Tensor]:
    """One long row: o [T, H, V] and the state after it. The state given is left alone."""
    T, H, K = v_THV.shape[0], v_THV.shape[1], k_TGK.shape[-1]
    q, k, v, g, beta = (
        _in_chunks(x, T) for x in (heads_of(unit(q_TGK), H), heads_of(unit(k_TGK), H), v_THV, g_TH, beta_TH)
    )
    decay = g.cumsum(-1)  # [N, H, C]
    between, grown = _between(decay), decay.exp()[..., None]
    lower = (k @ k.transpose(-1, -2)).mul_(between).mul_(beta[..., None])
    right = torch.cat((v, k * grown), dim=-1).mul_(beta[..., None])
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    u, w = solved.split((v.shape[-1], K), dim=-1)
    within = (q @ k.transpose(-1, -2)).mul_(between)
    q_grown = q * grown
    last = decay[..., -1:]
    k_left = k * (last - decay).exp_()[..., None]
    whole = last.exp()[..., None]
    state, out = state_HVK, []
    for n in range(q.shape[0]):
        written = torch.baddbmm(u[n], w[n], state.transpose(1, 2), alpha=-1)
        out.append(torch.baddbmm(q_grown[n] @ state.transpose(1, 2), within[n], written))
        state = torch.baddbmm(state * whole[n], written.transpose(1, 2), k_left[n])
    o_NCHV = torch.stack(out).transpose(1, 2)
    return o_NCHV.reshape(-1, *v_THV.shape[1:])[:T].mul_(K**-0.5), state


def _in_chunks(x: Tensor, tokens: int) -> Tensor:
    """[T, H, ...] -> [chunks, H, CHUNK, ...] fp32, zeros after the last token: a write of nothing."""
    missing = -tokens % CHUNK
    x = F.pad(x.float(), (*[0, 0] * (x.dim() - 1), 0, missing))
    return x.view(-1, CHUNK, *x.shape[1:]).transpose(1, 2)


def _between(decay: Tensor) -> Tensor:
    """``exp(decay_i - decay_j)`` for j <= i, else 0: [..., W] -> [..., W, W]."""
    W = decay.shape[-1]
    later = torch.ones(W, W, dtype=torch.bool, device=decay.device).triu_(1)
    return (decay[..., :, None] - decay[..., None, :]).masked_fill_(later, float("-inf")).exp_()
