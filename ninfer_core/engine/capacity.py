"""The ingress bound: how many requests may be in the house at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ninfer_core.errors import InvariantError, Overloaded


class Capacity:
    """Counts requests from preparation to the release of their response. Used from the event loop only."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.held = 0
        self.peak = 0

    def acquire(self) -> CapacityUnit:
        """One unit, or Overloaded at once: there is no queue in front of the queue."""
        if self.held >= self.bound:
            raise Overloaded
        self.held += 1
        self.peak = max(self.peak, self.held)
        return CapacityUnit(self)


class CapacityUnit:
    """Returned when both the engine has produced the end and the consumer has let go, in either order, exactly once."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._open = {"engine", "consumer"}

    def done(self, side: str) -> None:
        """``side`` ("engine" or "consumer") is through; saying so again changes nothing."""
        if side not in self._open:
            return
        self._open.remove(side)
        if not self._open:
            self._capacity.held -= 1
            if self._capacity.held < 0:
                raise InvariantError("capacity: more units returned than taken")


class Seat:
    """One unit for several generations, one after the other: nobody takes the place between two of them."""

    def __init__(self, unit: CapacityUnit) -> None:
        self._unit = unit
        self._busy = False
        self._left = False

    def take(self) -> Seat:
        """For the next generation. The one before it has ended."""
        self._busy = True
        return self

    def done(self, side: str) -> None:
        """As a generation says it: its consumer has let go, or the engine is through with it."""
        if side == "engine":
            self._busy = False
            self._settle()

    def leave(self) -> None:
        """No generation follows. The unit is returned once the engine is through with the last one."""
        self._left = True
        self._unit.done("consumer")
        self._settle()

    def _settle(self) -> None:
        if self._left and not self._busy:
            self._unit.done("engine")


@contextlib.contextmanager
def returned_on_failure(unit: CapacityUnit | Seat) -> Iterator[None]:
    """For what may fail before a generation has the unit."""
    try:
        yield
    except BaseException:
        unit.done("engine")
        unit.done("consumer")
        raise
