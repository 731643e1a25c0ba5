"""Runs units on the model and holds their outcome until it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ninfer_core.api.nn import Cache, Model, Step
from ninfer_core.engine.flight import Flight, Pending, Row, goes_on, kept_in_place
from ninfer_core.engine.graphs import DecodeGraphs, Recorded, RoundRow
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.stats import WAIT, HostClock
from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool
from ninfer_core.sampling.sampler import FAILED, Column, Drawn, sample
from ninfer_kernels.sampling import DECODE, DRAWN, PREFILL

__all__ = ["Pending", "Program", "Row"]


class Program:
    """The model with its cache and states. Called by the engine thread only.

    A prefill or control unit advances cache and state in place; a decode unit writes the cache past the frontier,
    leaves the state alone and becomes real with ``commit``.
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
        self._flight: Flight | None = None

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

    def decode(self, lanes: Sequence[Lane], *, ahead: bool = False) -> Pending:
        """One round over the decoding lanes: each feeds its last token and its drafts and draws one token a column.

        ``ahead``: where rounds are recorded, send off the next one too before this one has come down. The round
        returned may be the one sent off last, over those of its lanes that are still there.
        """
        flight, self._flight = self._flight, None
        if flight is not None:
            with self.clock.phase("program_submit"):
                flight = flight.over(lanes)
        if flight is None:
            rows, fed = self._proposed(lanes)
            recorded = self.graphs.choose(len(rows), max(map(len, fed))) if self.graphs is not None else None
            if recorded is None:
                return self._stepped(rows, fed)
            flight = self._started(
                recorded, rows, [_round_row(row.lane, own) for row, own in zip(rows, fed, strict=True)]
            )
        following = self._send_after(flight, lanes) if ahead and not any(lane.drafting for lane in lanes) else None
        assert self.graphs is not None
        with self.clock.phase(WAIT):
            self.graphs.wait(flight.sent)
        with self.clock.phase("program_post"):
            pending = flight.landed()
            if following is not None:
                following.learn(pending.rows)
                pending.folded = True
            self._flight = following
        return pending

    def _proposed(self, lanes: Sequence[Lane]) -> tuple[list[Row], list[list[int]]]:
        """What each lane feeds: its last token and its drafts."""
        with self.clock.phase("program_submit"):
            rows, fed = [], []
            for lane in lanes:
                draft, source, handle = lane.propose() or (None, None, None)
                rows.append(Row(lane=lane, tokens=[], draft=draft, source=source, handle=handle))
                fed.append([lane.ledger[lane.frontier], *draft.tokens] if draft else [lane.ledger[lane.frontier]])
                lane.space.cover(lane.frontier + len(fed[-1]))
        return rows, fed

    def _started(self, recorded: Recorded, rows: list[Row], filled: Sequence[RoundRow]) -> Flight:
        assert self.graphs is not None
        with self.clock.phase("program_submit"):
            return Flight.of(self.graphs.start(recorded, filled), rows)

    def _send_after(self, flight: Flight, lanes: Sequence[Lane]) -> Flight | None:
        """Send off the round after one whose tokens have not come down, the state moved on for that one. None where no
        row goes on, or no such round is recorded."""
        assert self.graphs is not None
        drawing = {row.lane.index for row in flight.rows}
        staying = [lane for lane in lanes if lane.index not in drawing or goes_on(lane)]
        recorded = self.graphs.choose(len(staying), 1)
        if recorded is None or flight.has_drafts:
            return None
        with self.clock.phase("program_submit"):
            moved = flight.sent.recorded
            self.graphs.fold(moved, kept_in_place(moved, flight.places, [1] * len(flight.rows)))
            filled = []
            for lane in staying:
                after = (DRAWN,) if lane.index in drawing else ()
                lane.space.cover(lane.frontier + len(after) + 1)
                filled.append(_round_row(lane, after or lane.ledger[-1:], after=after))
        return self._started(recorded, [Row(lane=lane, tokens=[]) for lane in staying], filled)

    def _stepped(self, rows: list[Row], fed: Sequence[Sequence[int]]) -> Pending:
        """A decode round step by step."""
        lanes = [row.lane for row in rows]
        with self.clock.phase("program_submit"):
            step = self._step(lanes, fed, wanted=[len(tokens) for tokens in fed], provisional=True)
            columns = [
                _column(lane, lane.frontier + 1 + i, DECODE, tuple(tokens[1 : 1 + i]))
                for lane, tokens in zip(lanes, fed, strict=True)
                for i in range(len(tokens))
            ]
        drawn, records = self._run(step, columns)
        with self.clock.phase("program_post"):
            taken = iter(drawn)
            for row, tokens in zip(rows, fed, strict=True):
                row.take([next(taken) for _ in tokens])
        return Pending(step=step, rows=rows, records=records)

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

    def commit(self, pending: Pending, kept: Sequence[int]) -> None:
        """Make ``kept[b]`` of each row's tokens real: ledger, frontier, recurrent state, penalty counts, drafts."""
        if pending.folded:
            if any(count != 1 for row, count in zip(pending.rows, kept, strict=True) if row.tokens != [FAILED]):
                raise InvariantError(f"a round of one column kept {list(kept)} tokens, its state one of each row")
        elif pending.recorded is not None:
            assert self.graphs is not None
            self.graphs.fold(pending.recorded, kept_in_place(pending.recorded, pending.places, kept))
        elif pending.advanced is None:
            with self.clock.phase(WAIT), torch.inference_mode():  # the model's own work, as its forward pass is
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
                if row.draft is not None:
                    lane.space.trim(lane.frontier)
            if row.draft is not None and row.source is not None:
                accepted = min(max(len(row.tokens) - 1, 0), count)
                lane.drafted += len(row.draft.tokens)
                lane.accepted += accepted
                row.source.observe(row.handle, row.draft, accepted)
            if count and lane.frontier != len(lane.ledger) - 1:
                raise InvariantError(f"lane {lane.index}: frontier {lane.frontier}, ledger {len(lane.ledger)}")

    def synchronize(self) -> None:
        """Wait until the device has nothing to do; raises what a broken device raises. A round under way is dropped."""
        self._flight = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(self, step: Step, columns: Sequence[Column]) -> tuple[list[Drawn], Any]:
        with self.clock.phase(WAIT), torch.inference_mode():
            out = self.model.forward(step, self.cache, self.states.parts)
            return (sample(out.logits, columns, self.public_tokens) if columns else []), out.records

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


def _round_row(lane: Lane, tokens: Sequence[int], after: Sequence[int] = ()) -> RoundRow:
    """``after``: tokens drawn that are not in the ledger yet."""
    return RoundRow(
        tokens=tokens,
        frontier=lane.frontier + len(after),
        state_slot=lane.state_slot,
        pages=lane.space.pages,
        params=lane.params,
        logprobs=lane.request.logprobs,
        lane=lane.index,
        request=lane.request.id,
        ledger=lane.ledger,
        after=after,
        prompt_tokens=lane.prompt_tokens,
    )
