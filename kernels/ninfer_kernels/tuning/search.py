"""The search for block sizes: every candidate timed over inputs that the device's cache cannot hold.

It is timed twice, alone and with a neighbour's launch before each of its own, and the mean counts: in a round other
launches lie between two of a shape, and a program that wants most of a multiprocessor's shared memory then waits until
the launch before has left it. Among programs of its own kind that does not show (docs/performance.md). The neighbour's
own time is taken off again. It is taken anew for every shape, because a device's speed drifts.

A candidate counts when its result is that of the default within the kernel's tolerance. A shape is decided when all of
its candidates were tried; one that the time did not suffice for keeps what it has.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .facts import Facts
from .table import Blocks, Choice, Key, Shape
from .tunable import Inputs, Tunable

GAIN = 0.97
"""A candidate replaces the default when it takes at most this share of its time: less is noise."""
NOISE = 0.01
"""And when it is faster by this share of the neighbour's time, whose noise is in the difference."""
MOST_COPIES = 64
NEIGHBOURS = 8  # launches its own time is the mean of
REPLAYS = 12
REPLAY_SECONDS = 0.03  # for all replays of one candidate

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The outcome for one shape."""

    blocks: Blocks
    microseconds: float
    default_microseconds: float
    tried: int  # candidates that ran and were right
    failed: int


Launch = Callable[[], object]


class Timer(Protocol):
    """Runs work on a device and says how long it takes."""

    def seconds(self, work: Launch) -> float:
        """Of one ``work()``, the median of several."""


class GraphTimer:
    """Replays of a CUDA graph, so that launches cost nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, work: Launch) -> float:
        return statistics.median(self.times(work))

    def times(self, work: Launch) -> list[float]:
        """Seconds of each of several replays."""
        with torch.cuda.device(self.device):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                work()
            first = self._replay(graph)
            repeats = max(3, min(REPLAYS, int(REPLAY_SECONDS / max(first, 1e-6))))
            return [self._replay(graph) for _ in range(repeats)]

    def _replay(self, graph: torch.cuda.CUDAGraph) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def search(
    choices: Iterable[tuple[Key, Choice]],
    facts: Facts,
    device: torch.device,
    *,
    deadline: float,
    neighbour: Callable[[torch.device], Launch] | None = None,
    timer: Timer | None = None,
    clock: Callable[[], float] = time.monotonic,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Key, Measured]:
    """The best blocks of every shape that could be decided before ``deadline``; never raises for a shape that fails.

    ``neighbour`` makes the launch that lies between those of a candidate; without one, or where it cannot be made, they
    are timed alone.
    ``advance`` hears (shapes done, shapes in all).
    """
    wanted = list(choices)
    found: dict[Key, Measured] = {}
    trial = _Trial(timer or GraphTimer(device), _made(neighbour, device) if neighbour and wanted else None)
    for done, (key, choice) in enumerate(wanted):
        advance(done, len(wanted))
        if clock() >= deadline:
            break
        try:
            measured = _decide(choice, facts, device, trial, lambda: clock() >= deadline)
        except Exception as error:  # out of memory, a compiler that fails: the default stays
            log.debug("%s %s: not searched (%s)", key[0], dict(key[1]), type(error).__name__)
            measured = None
        if measured is not None:
            found[key] = measured
    advance(len(wanted), len(wanted))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _made(neighbour: Callable[[torch.device], Launch], device: torch.device) -> Launch | None:
    """The neighbour, compiled before it is recorded; None where it does not run."""
    try:
        launch = neighbour(device)
        launch()
        return launch
    except Exception as error:  # out of memory: it is larger than the inputs of most shapes
        log.debug("searched without a neighbour (%s)", type(error).__name__)
        return None


class _Trial:
    """Times one launch alone and beside its neighbour."""

    def __init__(self, timer: Timer, neighbour: Launch | None) -> None:
        self._timer, self._neighbour = timer, neighbour
        self._neighbour_seconds = 0.0

    def begin(self) -> None:
        """Before the first run of a shape."""
        neighbour = self._neighbour
        if neighbour is not None:
            self._neighbour_seconds = self._timer.seconds(lambda: [neighbour() for _ in range(NEIGHBOURS)]) / NEIGHBOURS

    @property
    def noise(self) -> float:
        """Seconds by which two equal launches may seem to differ."""
        return NOISE * self._neighbour_seconds

    def seconds(self, tunable: Tunable, copies: list[Inputs], blocks: Blocks) -> float:
        """Of one run."""
        alone = self._timer.seconds(lambda: [tunable.run(inputs, blocks) for inputs in copies]) / len(copies)
        neighbour = self._neighbour
        if neighbour is None:
            return alone
        both = self._timer.seconds(lambda: [(neighbour(), tunable.run(inputs, blocks)) for inputs in copies])
        return (alone + both / len(copies) - self._neighbour_seconds) / 2


def _decide(
    choice: Choice, facts: Facts, device: torch.device, trial: _Trial, late: Callable[[], bool]
) -> Measured | None:
    """The best blocks of one shape; None when it became too late."""
    tunable, shape = choice.tunable, choice.shape
    copies = rotating_inputs(tunable, shape, facts, device)
    default = tunable.default(shape, facts)
    wanted = tunable.run(copies[0], default).float()
    trial.begin()
    standard = best = trial.seconds(tunable, copies, default)
    chosen, tried, failed = default, 0, 0
    seen = [dict(default)]
    for blocks in tunable.candidates(shape, facts):
        if late():
            return None
        # where something was cut down to what a device has, two candidates may be one
        if dict(blocks) in seen:
            continue
        seen.append(dict(blocks))
        seconds = _time(tunable, copies, blocks, wanted, trial)
        if seconds is None:
            failed += 1
            continue
        tried += 1
        if seconds < best and seconds <= standard * GAIN - trial.noise:
            best, chosen = seconds, blocks
    return Measured(
        blocks=chosen, microseconds=best * 1e6, default_microseconds=standard * 1e6, tried=tried, failed=failed
    )


def _time(tunable: Tunable, copies: list[Inputs], blocks: Blocks, wanted: Tensor, trial: _Trial) -> float | None:
    """Seconds of one run; None for blocks that do not run or are wrong."""
    try:
        if not close(tunable.run(copies[0], blocks).float(), wanted, tunable.tolerance):
            return None
        return trial.seconds(tunable, copies, blocks)
    except Exception as error:  # too much shared memory, an instruction this device has not
        log.debug("%s %s: %s", tunable.name, dict(blocks), type(error).__name__)
        return None


def close(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Whether the norm of the difference is at most ``tolerance`` of the norm; never for what is not finite."""
    if got.shape != wanted.shape or not bool(torch.isfinite(got).all()):
        return False
    return float((got - wanted).norm()) <= tolerance * float(wanted.norm())


def rotating_inputs(tunable: Tunable, shape: Shape, facts: Facts, device: torch.device) -> list[Inputs]:
    """Inputs often enough that a run finds none of its own in the cache."""
    generator = torch.Generator(device).manual_seed(0)
    copies = [tunable.inputs(shape, device, generator)]
    size = max(input_bytes(copies[0]), 1)
    room = _room(device)
    count = min(-(-2 * facts.cache_bytes // size), MOST_COPIES, 1 + room // size)
    copies += [tunable.inputs(shape, device, generator) for _ in range(count - 1)]
    return copies


def _room(device: torch.device) -> int:
    """Bytes the further copies may take: half of what is free."""
    return int(torch.cuda.mem_get_info(device)[0]) // 2 if device.type == "cuda" else 1 << 20


def input_bytes(inputs: Inputs) -> int:
    """Of the tensors among them, and of what says how many bytes it has."""
    return sum(int(getattr(one, "nbytes", 0)) for one in inputs)
