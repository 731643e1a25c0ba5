"""The engine thread's own account of its time, boundary by boundary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from ninfer_core.cli.rows import Row, row
from ninfer_core.engine.stats import PHASES, Snapshot
from ninfer_core.engine.worker import Worker


def snapshots_of(worker: Worker, heard: Callable[[Snapshot], object] = lambda snapshot: None) -> list[Snapshot]:
    """A list that every snapshot the worker publishes from now on is added to, after which ``heard`` is called."""
    publish, found = worker.publish, list[Snapshot]()

    def publish_and_keep() -> None:
        publish()
        found.append(worker.snapshot)
        heard(worker.snapshot)

    worker.publish = publish_and_keep  # type: ignore[method-assign]
    return found


def full_rounds(snapshots: Sequence[Snapshot], rows: int) -> list[tuple[Snapshot, Snapshot]]:
    """The boundaries between which lies one decode round over ``rows`` rows and nothing else."""
    return [(a, b) for a, b in pairwise(snapshots) if _is_one_round(a, b, rows)]


def _is_one_round(before: Snapshot, after: Snapshot, rows: int) -> bool:
    ran = (after.counters.decode_rounds - before.counters.decode_rounds, after.counters.prefill_units)
    return ran == (1, before.counters.prefill_units) and before.gauges.running == after.gauges.running == rows


def host_rows(rounds: Sequence[tuple[Snapshot, Snapshot]], rows: int, impl: str, note: str) -> list[Row]:
    """Two rows of decode rounds: the host's part, with its phases, and the wait for the model with the sampler."""
    spent = {name: [b.host.phases[name] - a.host.phases[name] for a, b in rounds] for name in PHASES}
    shares = ", ".join(f"{name} {1e3 * statistics.median(seconds):.3f}" for name, seconds in spent.items())
    host = [1e3 * (b.host.total - a.host.total) for a, b in rounds]
    wait = [1e3 * (b.host.device_wait - a.host.device_wait) for a, b in rounds]
    return [
        row("decode_host", f"R{rows}", impl, host, tokens=rows, note=f"{note}; p50 of phases: {shares}"),
        row("decode_device_wait", f"R{rows}", impl, wait, tokens=rows, note=note),
    ]
