"""Logits of several rows to one drawn token each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.sampling.params import SamplingParams
from ninfer_kernels.sampling import pick, support, top_candidates, uniform

FAILED = -1  # the sentinel of a row whose logits are not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One position to fill."""

    params: SamplingParams
    position: int  # of the token that is drawn
    purpose: int
    counts: Counter[int]  # generated tokens so far, for penalties
    ahead: tuple[int, ...] = ()  # drafts before this column that are not counted yet


def sample(logits: Tensor, columns: Sequence[Column], public_tokens: int) -> list[int]:
    """One token per row, FAILED where the row's logits are not finite. logits: [R, V], one row per column.

    Every row depends on its own logits and column alone, so neighbours cannot change it.
    """
    z = logits[:, :public_tokens]
    if any(column.params.penalized for column in columns):
        z = _penalized(z, columns)
    best = z.max(dim=-1)
    sound = torch.isfinite(best.values).tolist()
    drawn = z.argmax(dim=-1).tolist()  # the lowest id among equals
    warm = [row for row, column in enumerate(columns) if sound[row] and not column.params.greedy]
    if warm:
        part = z if len(warm) == len(columns) else z[warm]
        found = top_candidates(part, max(columns[row].params.top_k for row in warm))
        for at, row in enumerate(warm):
            column = columns[row]
            params = column.params
            weights = support(found.logits[at, : params.top_k], params.temperature, params.top_p, params.min_p)
            rank = pick(weights, uniform(params.seed, column.position, column.purpose))
            drawn[row] = int(found.ids[at, rank])
    return [token if ok else FAILED for token, ok in zip(drawn, sound, strict=True)]


def _penalized(z: Tensor, columns: Sequence[Column]) -> Tensor:
    """Presence and frequency penalties over what was generated, the prompt excluded (speculation.md §3.1, step 2)."""
    z = z.float().clone()
    for row, column in enumerate(columns):
        params = column.params
        if not params.penalized:
            continue
        counts = column.counts + Counter(column.ahead) if column.ahead else column.counts
        if not counts:
            continue
        ids = torch.tensor(list(counts.keys()), device=z.device)
        times = torch.tensor(list(counts.values()), device=z.device, dtype=torch.float32)
        z[row, ids] -= params.presence_penalty + params.frequency_penalty * times
    return z
