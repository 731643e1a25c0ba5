"""Requests through the whole engine: time to their first token, and their decoding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer_core.api import ApiError, Delta, Done, RawJob, SamplingRequest, StartupError
from ninfer_core.cli.local import StageLine
from ninfer_core.cli.rows import Row, row
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.stats import Snapshot

from .boundaries import full_rounds, host_rows, snapshots_of
from .plan import Plan
from .prompts import random_prompt
from .subject import Subject

FEWEST_ROUNDS = 16  # that say something of the host's time
WARM_ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What one measurement runs."""

    rows: int
    prompt_tokens: int
    decode_tokens: int

    def __str__(self) -> str:
        return f"R{self.rows}-P{self.prompt_tokens}-D{self.decode_tokens}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """``prefill_ms``: from the start to the last row's first token. ``decode_ms``: from there to the first row's end.

    ``decoded``: the tokens all rows produced in ``decode_ms``; 0, and no time, where a row ended before all had begun.
    """

    prefill_ms: float
    decode_ms: float
    decoded: int
    boundaries: list[Snapshot]


class Shown:
    """How far one measurement is, for whoever waits at a terminal."""

    def __init__(self, line: StageLine, name: str, rows: int) -> None:
        self._line, self._name, self._rows = line, name, rows
        self._begun = 0  # rows whose first token came
        self._line.stage(f"{name}: prefill")

    def first_token(self) -> None:
        self._begun += 1
        self._line.advance(self._begun, self._rows)
        if self._begun == self._rows:
            self._line.stage(f"{self._name}: decode")

    def tokens(self, done: int, total: int) -> None:
        """``done`` of ``total`` of one row; the rows go in step."""
        if self._begun == self._rows:
            self._line.advance(done, total)


class PassClock:
    """One time for all that one pass of the event loop hears: a round's tokens come at once, row by row."""

    def __init__(self) -> None:
        self._now: float | None = None

    def __call__(self) -> float:
        if self._now is None:
            self._now = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._forget)
        return self._now

    def _forget(self) -> None:
        self._now = None


def planned(plan: Plan) -> list[Requests]:
    """Every number of rows at the first length; one row at the others, for their prefill alone."""
    first = [Requests(rows=rows, prompt_tokens=plan.prompts[0], decode_tokens=plan.decode_tokens) for rows in plan.rows]
    further = [Requests(rows=1, prompt_tokens=tokens, decode_tokens=1) for tokens in plan.prompts[1:]]
    return [*first, *further]


def measured_requests(
    subject: Subject, plan: Plan, runner: asyncio.Runner, line: StageLine
) -> Iterator[tuple[list[Row], list[str]]]:
    """The rows of each of the plan's requests, and a line about each kind that they give none of; StartupError when
    they do not fit the model."""
    snapshots = snapshots_of(subject.engine.worker)
    for requests in planned(plan):
        try:
            runs = []
            for seed in range(plan.repeats):
                shown = Shown(line, f"{requests} run {seed + 1} of {plan.repeats}", requests.rows)
                runs.append(runner.run(_measure(subject.engine, requests, seed, shown, snapshots)))
        except ApiError as error:
            raise StartupError(error.message) from None
        finally:
            line.clear()
        yield _rows(subject, requests, runs)


async def _measure(
    engine: LocalEngine, requests: Requests, seed: int, shown: Shown, snapshots: list[Snapshot]
) -> Measured:
    """Start all rows at once and watch when their tokens come."""
    prompts = [
        random_prompt(engine, requests.prompt_tokens, f"{requests}/{seed}/{number}") for number in range(requests.rows)
    ]
    snapshots.clear()
    start = time.perf_counter()
    clock = PassClock()
    stamps = await asyncio.gather(*(_row(engine, prompt, requests.decode_tokens, shown, clock) for prompt in prompts))
    first = max(times[0][0] for times in stamps)
    end = max(first, min(times[-1][0] for times in stamps))
    decoded = sum(count for times in stamps for when, count in times if first < when <= end)
    return Measured(
        prefill_ms=1e3 * (first - start), decode_ms=1e3 * (end - first), decoded=decoded, boundaries=snapshots.copy()
    )


async def _row(
    engine: LocalEngine, prompt: tuple[int, ...], tokens: int, shown: Shown, clock: PassClock
) -> list[tuple[float, int]]:
    """Arrival time and number of tokens of each event that brought some."""
    job = RawJob(prompt=(prompt,), max_tokens=tokens, ignore_eos=True, sampling=SamplingRequest(temperature=0.0))
    stamps: list[tuple[float, int]] = []
    done = 0
    async with await engine.complete(job) as generation:
        async for event in generation:
            if isinstance(event, Delta | Done) and event.token_ids:
                stamps.append((clock(), len(event.token_ids)))
                if len(stamps) == 1:
                    shown.first_token()
                done += len(event.token_ids)
                shown.tokens(done, tokens)
    return stamps


def _rows(subject: Subject, requests: Requests, runs: Sequence[Measured]) -> tuple[list[Row], list[str]]:
    """The rows of these runs, and a line for each kind of row that they are too few or too short for."""
    prompt = requests.rows * requests.prompt_tokens
    flops = requests.rows * subject.work.prompt_flops(requests.prompt_tokens)
    times = [item.prefill_ms for item in runs]
    rows = [row("prefill", str(requests), "ninfer", times, tokens=prompt, flops=flops, note=subject.label)]
    if requests.decode_tokens == 1:
        return rows, []
    missing = []
    if (decode := _decode_row(subject, requests, runs)) is not None:
        rows.append(decode)
    else:
        why = "the first request ended before the last began" if requests.rows > 1 else "all its tokens came at once"
        missing.append(f"no decode row for {requests}: {why}; use a larger --decode-tokens")
    rounds = [pair for item in runs for pair in full_rounds(item.boundaries, requests.rows)[WARM_ROUNDS:]]
    if len(rounds) >= FEWEST_ROUNDS:
        rows += host_rows(rounds, requests.rows, "ninfer", subject.label)
    else:
        few = f"{len(rounds)} rounds of all its rows after the first {WARM_ROUNDS} of a run, fewer than {FEWEST_ROUNDS}"
        missing.append(f"no decode_host row for {requests}: {few}; use a larger --decode-tokens or --repeats")
    return rows, missing


def _decode_row(subject: Subject, requests: Requests, runs: Sequence[Measured]) -> Row | None:
    """None where no run decoded with all of its rows."""
    runs = [item for item in runs if item.decoded]
    if not runs:
        return None
    # every run decodes the same number of tokens but for the ones that share an event; times are put on one count
    decoded = min(item.decoded for item in runs)
    times = [item.decode_ms * decoded / item.decoded for item in runs]
    each = subject.work.round_bytes(requests.rows, 1, requests.prompt_tokens + requests.decode_tokens // 2)
    moved = max(decoded // requests.rows, 1) * each
    return row("decode", str(requests), "ninfer", times, tokens=decoded, bytes_moved=moved, note=subject.label)
