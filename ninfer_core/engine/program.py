"""Runs units on the model and holds their outcome until it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ninfer_core.api import CopySource, Draft
from ninfer_core.api.nn import Cache, Model, Step
from ninfer_core.engine.graphs import DecodeGraphs, Recorded
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.stats import WAIT, HostClock
from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool
from ninfer_core.sampling.sampler import Column, Drawn, sample
from ninfer_core.spec.verify import licensed
from ninfer_kernels.sampling import DECODE, PREFILL


@dataclass(kw_only=True, slots=True)
class Row:
    """One lane's outcome of a unit."""

    lane: Lane
    tokens: list[int]  # what may be committed; a trailing FAILED fails the request
    drawn: list[Drawn] = field(default_factory=list)  # as sampled, one per column; ``tokens`` is a prefix
    draft: Draft | None = None
    source: CopySource | None = None
    handle: object = None


@dataclass(kw_only=True, slots=True)
class Pending:
    """A unit that ran: tokens and state, not yet real. ``advanced``: rows whose frontier moves by what was processed,
    the state having moved already (prefill, control); else it moves by what is kept."""

    step: Step
    rows: list[Row]
    records: Any = None
    advanced: list[int] | None = None
    recorded: Recorded | None = None


class Program:
    """The model with its cache and states. Called by the engine thread only.

    A prefill or control unit advances cache and state in place; a decode unit writes the cache past the frontier,
    leaves
    the state alone and becomes real with ``commit``.
    """

    def __init__(
        self,
        *,
        model: Model,
        cache: Cache,
        states: StatePool,
        device: torch.device,
        public_tokens: int,
        clock: HostClock,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.graphs = graphs
        self.model = model
        self.cache = cache
        self.states = states
        self.device = device
        self.public_tokens = public_tokens
        self.clock = clock

    @torch.inference_mode()
    def prefill(self, lane: Lane, count: int) -> Pending:
        """Process the next ``count`` prompt tokens of a lane; the unit that ends the prompt draws the first token."""
        end = lane.frontier + count
        last = end == lane.prompt_tokens
        with self.clock.phase("program_submit"):
            lane.space.cover(end)
            fed = [lane.ledger[lane.frontier : end]]
            step = self._step([lane], fed, wanted=[1 if last else 0], provisional=False)
        columns = [_column(lane, lane.prompt_tokens, PREFILL, scored=lane.request.scored)] if last else []
        drawn, _ = self._run(step, columns)
        row = Row(lane=lane, tokens=[one.token for one in drawn], drawn=drawn)
        return Pending(step=step, rows=[row], advanced=[count])

    @torch.inference_mode()
    def decode(self, lanes: Sequence[Lane]) -> Pending:
        """One round over the decoding lanes: each feeds its last token and its drafts and draws one token a column."""
        with self.clock.phase("program_submit"):
            rows, fed = [], []
            for lane in lanes:
                draft, source, handle = lane.propose() or (None, None, None)
                rows.append(Row(lane=lane, tokens=[], draft=draft, source=source, handle=handle))
                fed.append([lane.ledger[lane.frontier], *(draft.tokens if draft else ())])
                lane.space.cover(lane.frontier + len(fed[-1]))
            recorded = self.graphs.choose(len(lanes), max(map(len, fed))) if self.graphs is not None else None
            if recorded is None:
                step = self._step(lanes, fed, wanted=[len(tokens) for tokens in fed], provisional=True)
            else:
                step = recorded.step
                recorded.fill(
                    fed,
                    [lane.frontier for lane in lanes],
                    [lane.state_slot for lane in lanes],
                    [lane.space.pages for lane in lanes],
                )
            columns = [
                _column(lane, lane.frontier + 1 + i, DECODE, tuple(tokens[1 : 1 + i]))
                for lane, tokens in zip(lanes, fed, strict=True)
                for i in range(len(tokens))
            ]
        if recorded is None:
            drawn, records = self._run(step, columns)
        else:
            drawn, records = self._replay(recorded, fed, columns), None
        with self.clock.phase("program_post"):
            taken = iter(drawn)
            for row, tokens in zip(rows, fed, strict=True):
                row.drawn = [next(taken) for _ in tokens]
                row.tokens = licensed([one.token for one in row.drawn], row.draft.tokens if row.draft else ())
        return Pending(step=step, rows=rows, records=records, recorded=recorded)

    @torch.inference_mode()
    def insert(self, lanes: Sequence[Lane], spans: Sequence[Sequence[int]]) -> Pending:
        """Process chosen tokens instead of drawn ones (speculation.md §2.7); nothing is sampled."""
        with self.clock.phase("program_submit"):
            fed = []
            for lane, span in zip(lanes, spans, strict=True):
                lane.space.cover(lane.frontier + len(span))
                fed.append([lane.ledger[lane.frontier], *span[:-1]])
            step = self._step(lanes, fed, wanted=[0] * len(fed), provisional=False)
        self._run(step, [])
        rows = [Row(lane=lane, tokens=list(span)) for lane, span in zip(lanes, spans, strict=True)]
        return Pending(step=step, rows=rows, advanced=[len(span) for span in spans])

    @torch.inference_mode()
    def commit(self, pending: Pending, kept: Sequence[int]) -> None:
        """Make ``kept[b]`` of each row's tokens real: ledger, frontier, recurrent state, penalty counts, drafts."""
        with self.clock.phase(WAIT):  # the model's own work, as its forward pass is
            if pending.recorded is not None:
                assert self.graphs is not None
                self.graphs.fold(pending.recorded, kept)
            elif pending.advanced is None:
                self.model.fold(pending.step, pending.records, kept, self.states.parts)
        for b, (row, count) in enumerate(zip(pending.rows, kept, strict=True)):
            lane, tokens = row.lane, row.tokens[:count]
            lane.ledger.extend(tokens)
            for token in tokens:
                lane.counts[token] += 1
            if pending.advanced is not None:
                lane.frontier += pending.advanced[b]
            else:
                lane.frontier += count
                lane.space.trim(lane.frontier)
            if row.draft is not None and row.source is not None:
                accepted = min(max(len(row.tokens) - 1, 0), count)
                lane.drafted += len(row.draft.tokens)
                lane.accepted += accepted
                row.source.observe(row.handle, row.draft, accepted)
            if count and lane.frontier != len(lane.ledger) - 1:
                raise InvariantError(f"lane {lane.index}: frontier {lane.frontier}, ledger {len(lane.ledger)}")

    def synchronize(self) -> None:
        """Wait until the device has nothing to do; raises what a broken device raises."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(self, step: Step, columns: Sequence[Column]) -> tuple[list[Drawn], Any]:
        with self.clock.phase(WAIT):
            out = self.model.forward(step, self.cache, self.states.parts)
            return (sample(out.logits, columns, self.public_tokens) if columns else []), out.records

    def _replay(self, recorded: Recorded, fed: Sequence[Sequence[int]], columns: Sequence[Column]) -> list[Drawn]:
        with self.clock.phase(WAIT):
            assert self.graphs is not None
            logits, width = self.graphs.forward(recorded).logits, recorded.shape.width
            if len(columns) < len(logits):
                live = [row * width + i for row, tokens in enumerate(fed) for i in range(len(tokens))]
                logits = logits[live]
            return sample(logits, columns, self.public_tokens)

    def _step(
        self, lanes: Sequence[Lane], fed: Sequence[Sequence[int]], *, wanted: Sequence[int], provisional: bool
    ) -> Step:
        """``wanted[b]``: the number of last tokens of row ``b`` whose logits are needed."""
        starts = [0]
        logits: list[int] = []
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for lane, tokens, want in zip(lanes, fed, wanted, strict=True):
            pages = lane.space.pages
            ids.extend(tokens)
            for position in range(lane.frontier, lane.frontier + len(tokens)):
                positions.append(position)
                slots.append(pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
            starts.append(len(ids))
            logits.extend(range(len(ids) - want, len(ids)))
        width = max(len(lane.space.pages) for lane in lanes)
        table: list[int] = []
        for lane in lanes:
            table.extend(lane.space.pages)
            table.extend([0] * (width - len(lane.space.pages)))
        parts = self._upload(ids, positions, slots, logits, table)
        return Step(
            token_ids=parts[0],
            positions=parts[1],
            starts=tuple(starts),
            frontiers=tuple(lane.frontier for lane in lanes),
            page_table=parts[4].view(len(lanes), width),
            cache_slots=parts[2],
            state_slots=tuple(lane.state_slot for lane in lanes),
            logit_index=parts[3],
            provisional=provisional,
            prompt_tokens=tuple(lane.prompt_tokens for lane in lanes),
        )

    def _upload(self, *lists: list[int]) -> Sequence[torch.Tensor]:
        """The lists as int64 tensors on the device: one transfer for all of them."""
        flat = torch.tensor([value for values in lists for value in values], dtype=torch.int64)
        return torch.split(flat.to(self.device), [len(values) for values in lists])


def _column(
    lane: Lane, position: int, purpose: int, ahead: tuple[int, ...] = (), scored: tuple[int, ...] = ()
) -> Column:
    return Column(
        params=lane.params,
        position=position,
        purpose=purpose,
        counts=lane.counts,
        ahead=ahead,
        logprobs=lane.request.logprobs,
        scored=scored,
    )
