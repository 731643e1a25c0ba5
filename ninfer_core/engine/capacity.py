"""The ingress bound: how many requests may be in the house at once."""

from __future__ import annotations

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
