"""Several judgements for one client: a lane's worth at a time, within what the house may hold, over one beginning."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from ninfer_core.api import ChatJob, Score
from ninfer_core.engine.capacity import Capacity, Seat
from ninfer_core.engine.generation import LocalGeneration
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.prefix import Prefix
from ninfer_core.text.prompt import PreparedPrompt

log = structlog.get_logger()

Job = TypeVar("Job")
Verdict = TypeVar("Verdict")
TOKEN = "i"  # array's 32 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One prompt that waits for its turn, perhaps behind a thousand others."""

    job: ChatJob
    packed: bytes  # the token ids
    rest: PreparedPrompt  # without them

    @classmethod
    def of(cls, job: ChatJob, prompt: PreparedPrompt) -> Judgement:
        return cls(job=job, packed=array(TOKEN, prompt.ids).tobytes(), rest=replace(prompt, ids=()))

    @property
    def prompt(self) -> PreparedPrompt:
        return replace(self.rest, ids=_unpacked(self.packed))


def shared_prefix(judgements: Sequence[Judgement]) -> Prefix | None:
    """What all the prompts begin with, in whole pages and less than the shortest of them; None for less than a page."""
    prompts = [one.packed for one in judgements]
    if len(prompts) < 2:
        return None
    # what the first and the last in order have in common, all in between have
    low, high = _unpacked(min(prompts)), _unpacked(max(prompts))
    common = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    # one token at least is a judgement's own: its logits are what is asked for
    shortest = min(map(len, prompts)) // array(TOKEN).itemsize
    shared = min(common, shortest - 1) // PAGE_TOKENS * PAGE_TOKENS
    return Prefix(ids=low[:shared], coming=len(prompts)) if shared else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judges:
    """Has the judgements of a call made; ``prepare`` and ``enter`` are the engine's, and refuse what it refuses."""

    prepare: Callable[[ChatJob], Awaitable[PreparedPrompt]]
    enter: Callable[[ChatJob, PreparedPrompt, Seat, Prefix | None], LocalGeneration]
    nudge: Callable[[], None]  # have the engine thread look at what has changed
    capacity: Capacity
    lanes: int

    async def score(self, jobs: Sequence[ChatJob], first: Seat) -> list[Score]:
        """One score for each job, in order, and one line of the log for all. ``first``: a place that is held already.
        The first failure is raised."""
        began = time.monotonic()
        facts = {"request_id": jobs[0].request_id, "protocol": jobs[0].protocol, "judgements": len(jobs)}
        try:
            scores = await self._judge(jobs, first)
        except asyncio.CancelledError:
            log.info("request_done", **facts, finish="cancelled", total_seconds=round(time.monotonic() - began, 4))
            raise
        log.info(
            "request_done",
            **facts,
            prompt_tokens=sum(score.prompt_tokens for score in scores),
            reused_tokens=sum(score.cached_tokens for score in scores),
            total_seconds=round(time.monotonic() - began, 4),
        )
        return scores

    async def _judge(self, jobs: Sequence[ChatJob], first: Seat) -> list[Score]:
        """All prompts are prepared before the first is judged: what one of them is refused for costs nothing more, and
        only then is it known what they share."""
        prefix: Prefix | None = None

        async def judge(one: Judgement, seat: Seat) -> Score:
            async with self.enter(one.job, one.prompt, seat, prefix) as generation:
                try:
                    result = await generation.result()
                except BaseException:
                    if prefix is not None:
                        # before the others are told to stop, so that what they share goes with the last of them
                        prefix.given_up = True
                    raise
            return Score(logprobs=result.scores, prompt_tokens=result.prompt_tokens, cached_tokens=result.cached_tokens)

        try:
            judgements = [Judgement.of(job, await self.prepare(job)) for job in jobs]
            prefix = shared_prefix(judgements)
            return await take_turns(judgements, judge, first, self.capacity, self.lanes)
        finally:
            first.leave()
            if prefix is not None and prefix.coming:
                # nobody may be running any more whose end would let go of it
                prefix.given_up = True
                self.nudge()


async def take_turns(
    jobs: Sequence[Job],
    judge: Callable[[Job, Seat], Awaitable[Verdict]],
    first: Seat,
    capacity: Capacity,
    lanes: int,
) -> list[Verdict]:
    """The verdicts, in the order of the jobs. The first failure ends the rest and is raised.

    A place is held to the end, so that no job finds the house full halfway; further ones are taken as they are free, up
    to ``lanes`` in all. Every one is left at the end, ``first`` too.
    """
    verdicts: dict[int, Verdict] = {}
    running: dict[asyncio.Task[Verdict], tuple[int, Seat]] = {}
    seats = [first]
    idle = [first]
    waiting = iter(enumerate(jobs))
    left = len(jobs)
    try:
        while len(verdicts) < len(jobs):
            while left:
                if not idle and len(seats) < lanes and capacity.held < capacity.bound:
                    seats.append(Seat(capacity.acquire()))
                    idle.append(seats[-1])
                if not idle:
                    break
                seat, (at, job) = idle.pop(), next(waiting)
                left -= 1
                running[asyncio.ensure_future(judge(job, seat))] = (at, seat)
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                at, seat = running.pop(task)
                verdicts[at] = task.result()
                idle.append(seat)
    finally:
        for task in running:
            task.cancel()
        try:
            if running:
                # each leaves its generation, which the engine then ends at its next boundary
                await asyncio.gather(*running, return_exceptions=True)
        finally:
            # whoever waits for this may leave meanwhile
            for seat in seats:
                seat.leave()
    return [verdicts[at] for at in range(len(jobs))]


def _unpacked(packed: bytes) -> tuple[int, ...]:
    return tuple(array(TOKEN, packed))
