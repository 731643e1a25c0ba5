"""Several judgements for one client: a lane's worth at a time, within what the house may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ninfer_core.engine.capacity import Capacity, Seat

Job = TypeVar("Job")
Verdict = TypeVar("Verdict")


async def take_turns(
    jobs: Sequence[Job],
    judge: Callable[[Job, Seat], Awaitable[Verdict]],
    capacity: Capacity,
    lanes: int,
) -> list[Verdict]:
    """The verdicts, in the order of the jobs. The first failure ends the rest and is raised; Overloaded when there is
    no place for the first one.

    A place is held to the end, so that no job finds the house full halfway; further ones are taken as they are free, up
    to ``lanes`` in all.
    """
    verdicts: dict[int, Verdict] = {}
    running: dict[asyncio.Task[Verdict], tuple[int, Seat]] = {}
    seats = [Seat(capacity.acquire())]
    idle = [*seats]
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
        if running:
            # each leaves its generation, which the engine then ends at its next boundary
            await asyncio.gather(*running, return_exceptions=True)
        for seat in seats:
            seat.leave()
    return [verdicts[at] for at in range(len(jobs))]
