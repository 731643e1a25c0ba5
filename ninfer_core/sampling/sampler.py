"""Logits of several rows to one drawn token each, with log probabilities where a row asks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import ModuleType

import msgspec
import numpy as np
import torch
from torch import Tensor

from ninfer_core.api import TokenLogprob
from ninfer_core.sampling.params import DOMAIN, SamplingParams
from ninfer_kernels.device import gpu_route
from ninfer_kernels.sampling import TINY, Settings, best, pick, support, top_candidates, uniform

FAILED = -1  # the sentinel of a row whose logits are not finite
OUTSIDE = -9999.0  # the log probability of a token outside its position's likeliest


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One position to fill."""

    params: SamplingParams
    position: int  # of the token that is drawn
    purpose: int
    counts: Counter[int]  # generated tokens so far, for penalties
    ahead: tuple[int, ...] = ()  # drafts before this column that are not counted yet
    logprobs: int | None = None  # rivals to report; None: nothing to report
    scored: tuple[int, ...] = ()  # tokens whose exact log probability is wanted


class Drawn(msgspec.Struct, frozen=True):
    """One column's outcome."""

    token: int
    logprob: TokenLogprob | None = None
    scores: tuple[float, ...] = ()


def sample(logits: Tensor, columns: Sequence[Column], public_tokens: int) -> list[Drawn]:
    """One token per row, FAILED where the row's logits are not finite. logits: [R, V], one row per column.

    Every row depends on its own logits and column alone, so neighbours cannot change it.
    """
    z = logits[:, :public_tokens]
    drawn = _drawn(z, columns)
    for row, column in enumerate(columns):
        if column.scored:
            drawn[row] = msgspec.structs.replace(drawn[row], scores=_scores(z[row], column.scored))
    return drawn


def _scores(z: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """Log probabilities in the model's own distribution: all of the vocabulary, no penalties, temperature 1."""
    exact = z.double()
    mass = torch.logsumexp(exact, -1)
    return tuple((exact[list(tokens)] - mass).tolist())


def _drawn(z: Tensor, columns: Sequence[Column]) -> list[Drawn]:
    if any(column.params.penalized for column in columns):
        z = _penalized(z, columns)
    if (gpu := gpu_route(z, "ninfer_kernels.sampling")) is not None:
        return _drawn_there(gpu, z, columns)
    tokens = [FAILED] * len(columns)
    greedy = [row for row, column in enumerate(columns) if column.params.greedy]
    if greedy:
        values, ids = best(_rows(z, greedy))
        for row, value, token in zip(greedy, values.tolist(), ids.tolist(), strict=True):
            tokens[row] = token if math.isfinite(value) else FAILED
    warm = [row for row, column in enumerate(columns) if not column.params.greedy]
    if warm:
        found = top_candidates(_rows(z, warm), max(columns[row].params.top_k for row in warm))
        for at, row in enumerate(warm):
            if math.isfinite(found.logits[at].max()):  # NaN wins a max; masked candidates may be -inf
                tokens[row] = _draw(found.logits[at], found.ids[at], columns[row])
    reported = _reports(z, columns, tokens)
    return [Drawn(token, reported.get(row)) for row, token in enumerate(tokens)]


def _drawn_there(gpu: ModuleType, z: Tensor, columns: Sequence[Column]) -> list[Drawn]:
    """The same, drawn where the logits are: what comes back are the tokens, and the candidates of rows that report."""
    found = gpu.draw(z, [settings(column.params, column.position, column.purpose) for column in columns])
    tokens = found.tokens.tolist()
    wanted = [row for row, column in enumerate(columns) if column.logprobs is not None]
    reported = {}
    if wanted:
        ids, logprobs = found.ids[wanted].tolist(), found.logprobs[wanted].tolist()
        for row, row_ids, row_logprobs in zip(wanted, ids, logprobs, strict=True):
            reported[row] = record(tokens[row], row_ids, row_logprobs, columns[row].logprobs or 0)
    return [Drawn(token, reported.get(row)) for row, token in enumerate(tokens)]


def settings(params: SamplingParams, position: int, purpose: int) -> Settings:
    """How a GPU draws with these parameters."""
    return Settings(
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        top_k=params.top_k,
        seed=params.seed,
        position=position,
        purpose=purpose,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )


def record(token: int, ids: Sequence[int], logprobs: Sequence[float], wanted: int) -> TokenLogprob | None:
    """What is reported of a drawn token with ``wanted`` rivals. ``ids``, ``logprobs``: the position's likeliest, in
    order, minus infinity where there are fewer. None where nothing could be drawn."""
    if token == FAILED:
        return None
    top = [pair for pair in zip(ids, logprobs, strict=True) if math.isfinite(pair[1])]
    own = next((value for one, value in top if one == token), OUTSIDE)
    return TokenLogprob(token_id=token, logprob=own, top=tuple(top[:wanted]))


def _rows(z: Tensor, rows: list[int]) -> Tensor:
    return z if len(rows) == len(z) else z[rows]


def _draw(logits: np.ndarray, ids: np.ndarray, column: Column) -> int:
    params = column.params
    weights = support(logits[: params.top_k], params.temperature, params.top_p, params.min_p)
    return int(ids[pick(weights, uniform(params.seed, column.position, column.purpose))])


def _reports(z: Tensor, columns: Sequence[Column], tokens: Sequence[int]) -> dict[int, TokenLogprob | None]:
    """Log probabilities of the rows that want them: over the whole vocabulary, after penalties, before truncation
    (speculation.md §3.6); the temperature divides, 1 for greedy."""
    wanted = [row for row, column in enumerate(columns) if column.logprobs is not None and tokens[row] != FAILED]
    if not wanted:
        return {}
    part = _rows(z, wanted).float()
    temperatures = [max(columns[row].params.temperature or 1.0, TINY) for row in wanted]
    # the difference first: a tiny temperature must not overflow the best logit
    scaled = (part - part.amax(-1, keepdim=True)) / torch.tensor(temperatures, device=z.device).unsqueeze(-1)
    mass = torch.logsumexp(scaled, dim=-1).tolist()
    found = top_candidates(scaled, DOMAIN)
    out = {}
    for at, row in enumerate(wanted):
        ids, logprobs = found.ids[at].tolist(), [value - mass[at] for value in found.logits[at].tolist()]
        out[row] = record(tokens[row], ids, logprobs, columns[row].logprobs or 0)
    return out


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
