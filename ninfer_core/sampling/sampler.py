"""Logits of several rows to one drawn token each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    drawn = [FAILED] * len(columns)
    greedy = [row for row, column in enumerate(columns) if column.params.greedy]
    if greedy:
        best = _rows(z, greedy).max(dim=-1)  # the first index among equals is the lowest id
        for row, value, token in zip(greedy, best.values.tolist(), best.indices.tolist(), strict=True):
            drawn[row] = token if math.isfinite(value) else FAILED
    warm = [row for row, column in enumerate(columns) if not column.params.greedy]
    if warm:
        found = top_candidates(_rows(z, warm), max(columns[row].params.top_k for row in warm))
        for at, row in enumerate(warm):
            if math.isfinite(found.logits[at].max()):  # NaN wins a max; masked candidates may be -inf
                drawn[row] = _draw(found.logits[at], found.ids[at], columns[row])
    return drawn


def _rows(z: Tensor, rows: list[int]) -> Tensor:
    return z if len(rows) == len(z) else z[rows]


def _draw(logits: np.ndarray, ids: np.ndarray, column: Column) -> int:
    params = column.params
    weights = support(logits[: params.top_k], params.temperature, params.top_p, params.min_p)
    return int(ids[pick(weights, uniform(params.seed, column.position, column.purpose))])


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
