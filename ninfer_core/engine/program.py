"""Runs units on the model and holds their outcome until it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ninfer_core.api import CopySource, Draft
from ninfer_core.api.nn import Cache, Model, Step
from ninfer_core.engine.lanes import Lane
from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool
from ninfer_core.sampling.sampler import Column, sample
from ninfer_core.spec.verify import licensed
from ninfer_kernels.sampling import DECODE, PREFILL


@dataclass(kw_only=True, slots=True)
class Row:
    """One lane's outcome of a unit."""

    lane: Lane
    tokens: list[int]  # what may be committed; a trailing FAILED fails the request
    draft: Draft | None = None
    source: CopySource | None = None
    handle: object = None


@dataclass(kw_only=True, slots=True)
class Pending:
    """A unit that ran: tokens and state, not yet real."""

    step: Step
    rows: list[Row]
    records: Any = None
    processed: list[int] = field(default_factory=list)  # prompt tokens per row, for a prefill unit


class Program:
    """The model with its cache and states. Called by the engine thread only.

    A prefill unit advances cache and state in place; a decode unit writes the cache past the frontier, leaves the state
    alone and becomes real with ``commit``.
    """

    def __init__(
        self, *, model: Model, cache: Cache, states: StatePool, device: torch.device, public_tokens: int
    ) -> None:
        self.model = model
        self.cache = cache
        self.states = states
        self.device = device
        self.public_tokens = public_tokens

    @torch.inference_mode()
    def prefill(self, lane: Lane, count: int) -> Pending:
        """Process the next ``count`` prompt tokens of a lane; the unit that ends the prompt draws the first token."""
        end = lane.frontier + count
        last = end == lane.prompt_tokens
        lane.space.cover(end)
        step = self._step([lane], [lane.ledger[lane.frontier : end]], wanted=[1 if last else 0], provisional=False)
        out = self.model.forward(step, self.cache, self.states.parts)
        tokens: list[int] = []
        if last:
            tokens = sample(out.logits, [self._column(lane, lane.prompt_tokens, PREFILL)], self.public_tokens)
        return Pending(step=step, rows=[Row(lane=lane, tokens=tokens)], processed=[count])

    @torch.inference_mode()
    def decode(self, lanes: Sequence[Lane]) -> Pending:
        """One round over every decoding lane: each feeds its last token and its drafts and draws one token a column."""
        rows, fed = [], []
        for lane in lanes:
            proposal = lane.propose()
            draft, source, handle = proposal if proposal else (None, None, None)
            rows.append(Row(lane=lane, tokens=[], draft=draft, source=source, handle=handle))
            fed.append([lane.ledger[lane.frontier], *(draft.tokens if draft else ())])
            lane.space.cover(lane.frontier + len(fed[-1]))
        step = self._step(lanes, fed, wanted=[len(tokens) for tokens in fed], provisional=True)
        out = self.model.forward(step, self.cache, self.states.parts)
        columns = [
            self._column(lane, lane.frontier + 1 + i, DECODE, tuple(tokens[1 : 1 + i]))
            for lane, tokens in zip(lanes, fed, strict=True)
            for i in range(len(tokens))
        ]
        drawn = sample(out.logits, columns, self.public_tokens)
        for b, row in enumerate(rows):
            own = drawn[step.starts[b] : step.starts[b + 1]]
            row.tokens = licensed(own, row.draft.tokens if row.draft else ())
        return Pending(step=step, rows=rows, records=out.records)

    @torch.inference_mode()
    def commit(self, pending: Pending, kept: Sequence[int]) -> None:
        """Make ``kept[b]`` of each row's tokens real: ledger, frontier, recurrent state, penalty counts, drafts."""
        if pending.processed:
            lane = pending.rows[0].lane
            lane.frontier += pending.processed[0]
        else:
            self.model.fold(pending.step, pending.records, kept, self.states.parts)
        for row, count in zip(pending.rows, kept, strict=True):
            lane, tokens = row.lane, row.tokens[:count]
            lane.ledger.extend(tokens)
            lane.counts.update(tokens)
            if pending.processed:
                continue
            lane.frontier += count
            lane.space.trim(lane.frontier)
            if row.draft is not None and row.source is not None:
                accepted = min(max(len(row.tokens) - 1, 0), count)
                lane.drafted += len(row.draft.tokens)
                lane.accepted += accepted
                row.source.observe(row.handle, row.draft, accepted)
            if count and lane.frontier != len(lane.ledger) - 1:
                raise InvariantError(f"lane {lane.index}: frontier {lane.frontier}, ledger {len(lane.ledger)}")

    def _column(self, lane: Lane, position: int, purpose: int, ahead: tuple[int, ...] = ()) -> Column:
        return Column(params=lane.request.params, position=position, purpose=purpose, counts=lane.counts, ahead=ahead)

    def _step(
        self, lanes: Sequence[Lane], fed: Sequence[Sequence[int]], *, wanted: Sequence[int], provisional: bool
    ) -> Step:
        """``wanted[b]``: the number of last tokens of row ``b`` whose logits are needed."""
        starts = [0]
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logits: list[int] = []
        for lane, tokens, want in zip(lanes, fed, wanted, strict=True):
            pages = lane.space.pages
            ids.extend(tokens)
            for position in range(lane.frontier, lane.frontier + len(tokens)):
                positions.append(position)
                slots.append(pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
            starts.append(len(ids))
            logits.extend(range(len(ids) - want, len(ids)))
        width = max(len(lane.space.pages) for lane in lanes)
        table = [[*lane.space.pages, *[0] * (width - len(lane.space.pages))] for lane in lanes]
        return Step(
            token_ids=self._upload(ids),
            positions=self._upload(positions),
            starts=tuple(starts),
            frontiers=tuple(lane.frontier for lane in lanes),
            page_table=self._upload(table),
            cache_slots=self._upload(slots),
            state_slots=tuple(lane.state_slot for lane in lanes),
            logit_index=self._upload(logits),
            provisional=provisional,
            prompt_tokens=tuple(lane.prompt_tokens for lane in lanes),
        )

    def _upload(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
