"""Recorded rounds of a scripted engine without a GPU.

A replay sees what a CUDA graph would: the buffers that the round uploads, and nothing else of the host. From them it
makes the step that the model reads, and draws as the numbers say. Pages and states of the scripted family hold hashes
of what they were fed, so a wrong table, slot, frontier or kept count is a wrong text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ninfer_core.api.nn import Step
from ninfer_core.engine.graphs import DecodeGraphs, Recorded, RoundRow, Sent, Shape
from ninfer_core.engine.recorded import DRAWN, NOTHING
from ninfer_core.engine.stats import WAIT
from ninfer_core.kv.pages import pages_for
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import FAILED, Column, sample


@dataclass
class Rerun:
    """In place of a CUDA graph."""

    run: Callable[[], None]

    def replay(self) -> None:
        self.run()


class StandIn(DecodeGraphs):
    """Of a program on the CPU."""

    def __init__(self, engine: Any) -> None:
        self.program, limits = engine.worker.program, engine.limits
        self.replayed: Counter[Shape] = Counter()
        self.prompts: list[int] = []
        super().__init__(
            self.program.model,
            self.program.cache,
            self.program.states,
            torch.device("cpu"),
            lanes=limits.max_concurrency,
            pages=pages_for(limits.max_context),
            scratch_page=limits.pool_pages,
            public_tokens=self.program.public_tokens,
        )

    def start(self, recorded: Recorded, rows: Sequence[RoundRow]) -> Sent:
        self.prompts = [row.prompt_tokens for row in rows]  # the scripted model wants to know; others do not
        self.replayed[recorded.shape] += 1
        return super().start(recorded, rows)

    def _record(self, recorded: Recorded) -> None:
        recorded.forward = Rerun(lambda: self._forward(recorded))
        recorded.fold = Rerun(lambda: self._fold(recorded))

    def _forward(self, recorded: Recorded) -> None:
        with self.program.clock.phase(WAIT):
            self._feed(recorded)
            step, live = self._read(recorded)
            output = self._model.forward(step, self._cache, self._states.parts)
            recorded.records = (step, output.records)
            self._draw_live(recorded, live, output.logits[:, : self._public_tokens])

    def _fold(self, recorded: Recorded) -> None:
        with self.program.clock.phase(WAIT):
            recorded.upload_kept()
            step, records = recorded.records
            self._model.fold(step, records, recorded.kept.tolist(), self._states.parts)

    def _read(self, recorded: Recorded) -> tuple[Step, list[int]]:
        """The step of the columns in use, and where they are among all."""
        step, on = recorded.step, recorded.step.on_device
        assert on is not None
        widths, width = on.widths.tolist(), recorded.shape.width
        live = [b * width + i for b, count in enumerate(widths) for i in range(count)]
        starts = [0]
        for count in widths:
            starts.append(starts[-1] + count)
        return Step(
            token_ids=step.token_ids[live],
            positions=step.positions[live],
            starts=tuple(starts),
            frontiers=tuple(on.frontiers.tolist()),
            page_table=step.page_table,
            cache_slots=step.cache_slots[live],
            state_slots=tuple(on.state_slots.tolist()),
            logit_index=torch.arange(len(live)),
            provisional=True,
            prompt_tokens=tuple(self.prompts),
        ), live

    def _feed(self, recorded: Recorded) -> None:
        assert self._tally is not None
        for row, (lane, said) in enumerate(zip(recorded.lanes.tolist(), recorded.said.tolist(), strict=True)):
            drawn = max(int(self._tally.last[lane]), 0)
            ids = recorded.ids.view(recorded.shape.rows, -1)[row]
            ids[ids == DRAWN] = drawn
            for token in said:
                if token != NOTHING:
                    self._tally.counts[lane, drawn if token == DRAWN else token] += 1

    def _draw_live(self, recorded: Recorded, live: list[int], logits: torch.Tensor) -> None:
        """As the kernel draws: by the numbers of the row, at the position after the column's."""
        assert self._tally is not None
        width = recorded.shape.width
        floats = recorded.settings[:, 4:].to(torch.int32).view(torch.float32).tolist()
        ids, lanes = recorded.ids.tolist(), recorded.lanes.tolist()
        columns = []
        for at in live:
            row = at // width
            seed, purpose, top_k, greedy = recorded.settings[row, :4].tolist()
            temperature, top_p, min_p, presence, frequency = floats[row]
            params = SamplingParams(
                temperature=0.0 if greedy else temperature, top_p=top_p, top_k=top_k, min_p=min_p,
                presence_penalty=presence, frequency_penalty=frequency, seed=seed,
            )  # fmt: skip
            counts = Counter({t: n for t, n in enumerate(self._tally.counts[lanes[row]].tolist()) if n})
            ahead = tuple(ids[row * width + 1 : at + 1])
            position = int(recorded.positions[at]) + 1
            columns.append(
                Column(params=params, position=position, purpose=purpose, counts=counts, ahead=ahead, logprobs=20)
            )
        recorded.draws.tokens.fill_(FAILED)
        recorded.draws.logprobs.fill_(-torch.inf)
        for at, one in zip(live, sample(logits, columns, self._public_tokens), strict=True):
            recorded.draws.tokens[at] = one.token
            if at % width == 0:
                self._tally.last[lanes[at // width]] = one.token
            for rank, (token, logprob) in enumerate(one.logprob.top if one.logprob else ()):
                recorded.draws.ids[at, rank] = token
                recorded.draws.logprobs[at, rank] = logprob


class Backlog:
    """Work of a device that is as far behind as it may be: done in order, and only when the host waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def later(self, run: Callable[..., None]) -> Callable[..., None]:
        return lambda *given, **named: self.work.append(lambda: run(*given, **named))

    def first(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What the host calls is done after all that was called before it."""

        def called(*given: Any, **named: Any) -> Any:
            self.catch_up(len(self.work))
            return run(*given, **named)

        return called

    def catch_up(self, count: int) -> None:
        due, self.work = self.work[:count], self.work[count:]
        for run in due:
            run()


class LateMark:
    def __init__(self, backlog: Backlog) -> None:
        self.backlog, self.is_due = backlog, True

    def set(self) -> None:
        self.is_due = False

        def reached() -> None:
            self.is_due = True

        self.backlog.work.append(reached)

    def wait(self) -> None:
        while not self.is_due:
            self.backlog.catch_up(1)


class Late(StandIn):
    """A device that is late: what the host overwrites too early is wrong on it, and so is what it reads too early."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.backlog = Backlog()
        self._up, self._down = LateMark(self.backlog), [LateMark(self.backlog) for _ in range(2)]
        program, lanes = self.program, engine.worker.lanes
        for owner, name in ((program, "_run"), (program, "synchronize"), (lanes, "admit")):
            setattr(owner, name, self.backlog.first(getattr(owner, name)))

    def add(self, shape: Shape, *, news: int) -> Recorded:
        recorded, later = super().add(shape, news=news), self.backlog.later
        table, tally = self._table, self._tally
        for owner, names in (
            (table, ("upload",)),
            (tally, ("clear", "add")),
            (recorded, ("upload", "download")),
        ):
            for name in names:
                if name not in vars(owner):
                    setattr(owner, name, later(getattr(owner, name)))
        return recorded

    def _record(self, recorded: Recorded) -> None:
        super()._record(recorded)
        assert isinstance(recorded.forward, Rerun) and isinstance(recorded.fold, Rerun)
        forward, fold = recorded.forward.run, recorded.fold.run

        def forward_of(prompts: list[int]) -> None:
            newer, self.prompts = self.prompts, prompts
            forward()
            self.prompts = newer

        recorded.forward = Rerun(lambda: self.backlog.later(forward_of)(self.prompts))
        recorded.fold = Rerun(self.backlog.later(fold))


def record(engine: Any, shapes: Iterable[Shape], kind: type[StandIn] = StandIn) -> StandIn:
    """Let an engine run such rounds as recorded ones."""
    graphs = kind(engine)
    wanted = list(shapes)
    for shape in wanted:
        graphs.add(shape, news=max(one.width for one in wanted))
    engine.worker.program.graphs = graphs
    return graphs
