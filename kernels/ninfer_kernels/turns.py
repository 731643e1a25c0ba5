"""Launches that read one input and need nothing of each other, side by side on the GPU.

Within ``together`` the first launch that takes a turn waits for what was launched before and only then lets the next
one in: for every other the input is complete, so it starts at once. It waits at its end, and who waits for the last has
waited for all. A launch that takes no turn is in order as ever.
"""

from __future__ import annotations

import threading
from types import TracebackType

from torch import Tensor

ALONE, FIRST, BESIDE = 0, 1, 2


class together:  # noqa: N801 - reads as the statement it is
    """A context in which launches write nothing that another one of them reads or writes; within another one it is a
    part of that."""

    def __init__(self) -> None:
        self._is_begun = False
        self._held: list[Tensor] = []
        self._outer: together | None = None

    def __enter__(self) -> together:
        self._outer = getattr(_here, "now", None)
        if self._outer is None:
            _here.now = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._outer is None:
            _here.now = None
            self._held.clear()

    def next(self, scratch: Tensor | None) -> int:
        if scratch is not None:
            self._held.append(scratch)
        is_begun, self._is_begun = self._is_begun, True
        return BESIDE if is_begun else FIRST


_here = threading.local()


def turn(scratch: Tensor | None = None) -> int:
    """How the next launch waits: ALONE, FIRST or BESIDE. ``scratch``: memory of its own; what runs side by side must
    not get it from the allocator, so it is held until all of them are launched."""
    now: together | None = getattr(_here, "now", None)
    return ALONE if now is None else now.next(scratch)
