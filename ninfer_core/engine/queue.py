"""The strict FIFO between the event loop and the engine thread."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from ninfer_core.engine.request import Request
from ninfer_core.errors import ApiError


class WaitingQueue:
    """Submissions from the event loop, taken by the engine thread in order. Nothing overtakes its head."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed_with: ApiError | None = None
        self._nudged = False

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, request: Request) -> None:
        """Append; raises what ``close`` was given once the engine takes nothing more."""
        with self._changed:
            if self._closed_with is not None:
                raise self._closed_with
            self._waiting.append(request)
            self._changed.notify()

    def head(self) -> Request | None:
        with self._changed:
            return self._waiting[0] if self._waiting else None

    def look(self, count: int) -> tuple[int, list[Request]]:
        """How many wait, and the first ``count`` of them in order, of one moment."""
        with self._changed:
            return len(self._waiting), list(itertools.islice(self._waiting, count))

    def pop(self) -> Request:
        with self._changed:
            return self._waiting.popleft()

    def take_out(self, unwanted: Callable[[Request], bool]) -> list[Request]:
        """Remove and return what matches, in order."""
        with self._changed:
            out = [request for request in self._waiting if unwanted(request)]
            if out:
                self._waiting = deque(request for request in self._waiting if not unwanted(request))
            return out

    def close(self, error: ApiError) -> None:
        """Take nothing more; the engine thread is woken to end what is here."""
        with self._changed:
            self._closed_with = self._closed_with or error
            self._changed.notify()

    @property
    def closed_with(self) -> ApiError | None:
        return self._closed_with

    def nudge(self) -> None:
        """Wake a waiting engine thread: something it samples has changed."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def wait(self) -> None:
        """Block the engine thread until a submission, a nudge or the close."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed_with is not None or self._nudged)
            self._nudged = False
