"""Live figures: counters of the engine thread, and the snapshot it publishes at each boundary."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

PHASES = ("engine_boundary", "program_submit", "program_post", "engine_commit_output", "engine_maintenance")
WAIT = "device_wait"


class Counters(msgspec.Struct, kw_only=True):
    """Monotonic since the engine became ready; only the engine thread adds."""

    computed_prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    committed_decode_tokens: int = 0  # control tokens included, first tokens not
    decode_seconds: float = 0.0
    decode_rounds: int = 0
    decode_row_rounds: int = 0
    prefill_units: int = 0
    control_units: int = 0
    reused_prompt_tokens: int = 0
    selected_root: int = 0  # admissions that started from nothing cached
    requests: int = 0  # completed with an outcome
    requests_failed: int = 0  # accepted and ended in an error
    draft_tokens: int = 0  # of completed requests, as are the next two
    draft_accepted_tokens: int = 0
    prefix_cache_hit_tokens: int = 0
    waiting_cancelled: int = 0
    waiting_expired: int = 0
    waiting_abandoned_seconds: float = 0.0
    cancelled_prefills: int = 0
    cancelled_prefill_computed_tokens: int = 0
    engine_recoveries: int = 0
    selected_shared_prefix: int = 0  # admissions that started behind what their group shares
    captures_completed: int = 0  # shared prefixes that were held
    captures_skipped: int = 0  # for want of a state slot
    state_forks: int = 0  # states copied for a lane to begin with


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one boundary."""

    running: int = 0
    prefilling: int = 0
    decode_ready: int = 0
    waiting: int = 0
    kv_pages: int = 0  # mapped
    kv_lease_pages: int = 0  # reserved by running requests, not written yet
    state_slots: int = 0
    last_selected_frontier: int = 0  # tokens the newest admission did not have to process


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the queue."""

    request_id: int
    position: int
    wait_seconds: float


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One request in a lane."""

    lane: int
    prompt_tokens: int
    reused_tokens: int = 0


class HostWork(msgspec.Struct, frozen=True, kw_only=True):
    """The engine thread's wall time, each segment counted once, in seconds."""

    phases: dict[str, float]  # PHASES
    device_wait: float
    work_class: dict[str, float]  # "decode_host", "decode_device_wait", ... for decode, prefill and control

    @property
    def total(self) -> float:
        return sum(self.phases.values())


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one boundary; readers take the object and never a lock."""

    counters: Counters
    gauges: Gauges
    host: HostWork
    queue: tuple[Waiting, ...] = ()
    running: tuple[Running, ...] = ()
    at: float = 0.0  # monotonic seconds


class _Phase:
    """Entered some ten times a boundary, so it is no generator."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: HostClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()


class HostClock:
    """Attributes the engine thread's wall time to exclusive phases; time of a nested phase leaves the outer one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._phases = {name: _Phase(self, name) for name in (*PHASES, WAIT)}
        self._stack: list[str] = []
        self.work_class = "control"  # of the unit that is running
        self.reset()

    def reset(self) -> None:
        """Count from now on; between phases only."""
        self._seconds = dict.fromkeys((*PHASES, WAIT), 0.0)
        self._by_class = {name: 0.0 for names in CLASSES.values() for name in names}
        self._since = self._clock()

    def phase(self, name: str) -> _Phase:
        """``with clock.phase(name):``; a phase may hold others, never itself."""
        return self._phases[name]

    def enter(self, name: str) -> None:
        self._settle()
        self._stack.append(name)

    def leave(self) -> None:
        self._settle()
        self._stack.pop()

    def _settle(self) -> None:
        now = self._clock()
        if self._stack:
            name, spent = self._stack[-1], now - self._since
            self._seconds[name] += spent
            host, wait = CLASSES[self.work_class]
            self._by_class[wait if name == WAIT else host] += spent
        self._since = now

    def read(self) -> HostWork:
        phases = {name: self._seconds[name] for name in PHASES}
        return HostWork(
            phases=phases,
            device_wait=self._seconds[WAIT],
            work_class=self._by_class.copy(),
        )


CLASSES = {kind: (f"{kind}_host", f"{kind}_{WAIT}") for kind in ("decode", "prefill", "control")}
EMPTY = Snapshot(
    counters=Counters(),
    gauges=Gauges(),
    host=HostClock().read(),
)
