"""What one answer about the running server is made from: the engine's published snapshot and the ingress counts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninfer_core.engine.engine import EngineLimits, LocalEngine
    from ninfer_core.engine.stats import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Everything one answer needs, read once; the gauges and counters in it are of one boundary of the engine."""

    model: str
    uptime_seconds: float  # since the engine became ready
    limits: EngineLimits
    state_slots: int  # that the device pool has
    max_admitted: int
    admitted: int  # capacity units held, from preparation to the release of the response
    peak_admitted: int
    rejected: int  # generation requests refused before they were accepted
    snapshot: Snapshot
    age_seconds: float  # of the snapshot


def take(engine: LocalEngine) -> Figures:
    """The figures of this moment, from the event loop. The engine is neither asked nor waited for."""
    snapshot = engine.worker.snapshot
    return Figures(
        model=engine.info.id,
        uptime_seconds=engine.uptime_seconds,
        limits=engine.limits,
        state_slots=engine.worker.program.states.slots,
        max_admitted=engine.capacity.bound,
        admitted=engine.capacity.held,
        peak_admitted=engine.capacity.peak,
        rejected=engine.rejected,
        snapshot=snapshot,
        age_seconds=max(time.monotonic() - snapshot.at, 0.0),
    )


def ratio(part: float, whole: float) -> float:
    """``part / whole``; 0 when there is no whole."""
    return part / whole if whole else 0.0
