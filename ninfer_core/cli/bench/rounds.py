"""Decode rounds of one size at one context: tokens that recorded and single steps agree on, then times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from ninfer_core.api import Draft, DraftRequest, RawJob, SamplingRequest, StartupError
from ninfer_core.cli.rows import Row, row
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.graphs import Shape
from ninfer_core.engine.lanes import Lane
from ninfer_core.sampling.sampler import FAILED

from .plan import CHECKED, Plan
from .prompts import random_prompt
from .subject import Subject

STRIDES = (7919, 104_729, 15_485_863)  # of a draft's column, its row, its position


class Drafts:
    """``api.CopySource``: proposals from all over the vocabulary, so that experts are chosen as different tokens choose
    them. The same position gets the same proposal."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.max_drafts = 0

    def begin(self, request: DraftRequest) -> object:
        return request.request_id

    def propose(self, handle: object, ledger: Sequence[int], maximum: int) -> Draft | None:
        assert isinstance(handle, int)
        first = handle * STRIDES[1] + len(ledger) * STRIDES[2]
        tokens = [(first + i * STRIDES[0]) % self.vocabulary for i in range(min(self.max_drafts, maximum))]
        return Draft(tokens=tuple(tokens)) if tokens else None

    def observe(self, handle: object, draft: Draft, accepted: int) -> None:
        """They are random whatever became of them."""

    def finish(self, handle: object) -> None:
        """Nothing is held."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A sequence as it stood."""

    tokens: int
    frontier: int
    counts: Counter[int]


class Sequences:
    """Lanes of an engine that is not started, all at one context, put back there before each measurement."""

    def __init__(self, engine: LocalEngine, rows: int, context: int, room: int) -> None:
        self.engine, self.worker, self.program = engine, engine.worker, engine.worker.program
        self.drafts = Drafts(engine.info.vocab_tokens)
        self.lanes: list[Lane] = []
        try:
            for number in range(rows):
                self.lanes.append(
                    self._admitted(random_prompt(engine, context, f"context of {context}/{number}"), room)
                )
                self._prefill(self.lanes[-1])
        except BaseException:
            self.close()
            raise
        self._marks = [
            Mark(tokens=len(lane.ledger), frontier=lane.frontier, counts=lane.counts.copy()) for lane in self.lanes
        ]
        parts = self.program.states.parts
        self._states = {name: [part[lane.state_slot].clone() for lane in self.lanes] for name, part in parts.items()}

    def _admitted(self, prompt: tuple[int, ...], room: int) -> Lane:
        job = RawJob(
            prompt=(prompt,), max_tokens=room, ignore_eos=True, sampling=SamplingRequest(temperature=0.0, seed=0)
        )
        lane = self.worker.lanes.admit(self.engine.unheard(job), time.monotonic())
        if lane is None:
            raise StartupError(f"{len(prompt)} tokens of context do not fit; raise --kv-capacity or lower --contexts")
        for source, handle in lane.drafting:
            source.finish(handle)
        lane.drafting = []  # drafts are those of ``restore``
        return lane

    def _prefill(self, lane: Lane) -> None:
        while lane.prefill_remaining:
            pending = self.program.prefill(lane, self.worker.scheduler.unit_tokens(lane.prefill_remaining))
            self.program.commit(pending, [len(row.tokens) for row in pending.rows])

    def round(self, rows: int) -> list[int]:
        """One round over the first ``rows`` sequences, its tokens taken as if every draft were right: the most a round
        can cost. Without drafts the next one is sent ahead, as the engine does. The tokens drawn, by row and column."""
        pending = self.program.decode(self.lanes[:rows], ahead=True)
        for one in pending.rows:
            one.tokens = [drawn.token for drawn in one.drawn]
        self.program.commit(pending, [len(one.tokens) for one in pending.rows])
        return [token for one in pending.rows for token in one.tokens]

    def restore(self, width: int) -> None:
        """Back to the context, with that many columns in the next rounds."""
        self.program.synchronize()
        self.drafts.max_drafts = width - 1
        for number, (lane, mark) in enumerate(zip(self.lanes, self._marks, strict=True)):
            lane.drafting = [(self.drafts, number)] if width > 1 else []
            del lane.ledger[mark.tokens :]
            lane.frontier, lane.counts = mark.frontier, mark.counts.copy()
            lane.space.trim(lane.frontier)
            for name, part in self.program.states.parts.items():
                part[lane.state_slot].copy_(self._states[name][number])

    def impls(self, shape: Shape) -> tuple[str, ...]:
        """How such a round can run: replayed where it is recorded, and step by step."""
        graphs = self.program.graphs
        return ("eager",) if graphs is None or graphs.choose(shape.rows, shape.width) is None else ("graph", "eager")

    @contextmanager
    def running(self, impl: str) -> Iterator[None]:
        """Within, rounds run that way."""
        graphs = self.program.graphs
        self.program.graphs = graphs if impl == "graph" else None
        try:
            yield
        finally:
            self.program.graphs = graphs

    def times_ms(self, rows: int, count: int) -> list[float]:
        """From the end of one round to that of the next: what a round leaves to the device overlaps with the next one,
        as it does in the engine."""
        self.program.synchronize()
        stamps = [time.perf_counter()]
        for _ in range(count):
            self.round(rows)
            stamps.append(time.perf_counter())
        self.program.synchronize()
        return [1e3 * (after - before) for before, after in pairwise(stamps)]

    def close(self) -> None:
        for lane in self.lanes:
            self.worker.lanes.release(lane)


def measured_rounds(
    subject: Subject, plan: Plan, context: int, tell: Callable[[str], None]
) -> Iterator[tuple[Shape, list[Row] | None]]:
    """The rows of each size of round at ``context``; None where recorded and single steps draw different tokens."""
    tell(f"context of {context}: prefill")
    sequences = Sequences(subject.engine, max(plan.rows), context, plan.room)
    try:
        for rows in plan.rows:
            for width in plan.widths:
                shape = Shape(rows=rows, width=width)
                tell(f"context of {context}: rounds of {rows} rows and {width} columns")
                yield shape, _rows_of(subject, plan, sequences, shape, context)
    finally:
        sequences.close()


def _rows_of(subject: Subject, plan: Plan, sequences: Sequences, shape: Shape, context: int) -> list[Row] | None:
    impls = sequences.impls(shape)
    said, timed = [], []
    for impl in impls:
        sequences.restore(shape.width)
        with sequences.running(impl):
            said.append([sequences.round(shape.rows) for _ in range(CHECKED)])
            if impl == impls[0] or plan.eager:
                timed.append((impl, sequences.times_ms(shape.rows, plan.rounds)))
    if any(FAILED in tokens for tokens in said[0]):
        raise StartupError(f"{subject.label}: a decode round's logits are not finite")
    if any(tokens != said[0] for tokens in said):
        return None
    name = f"R{shape.rows}-W{shape.width}-C{context}"
    columns = shape.rows * shape.width
    moved = subject.work.round_bytes(shape.rows, shape.width, context)
    return [
        row("decode_round", name, impl, times, tokens=columns, bytes_moved=moved, note=subject.label)
        for impl, times in timed
    ]
