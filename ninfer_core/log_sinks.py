"""Where log lines go. No sink ever raises: a full disk or a closed pipe must not end a request or an engine."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from typing import Protocol

DRAIN_SECONDS = 1.0


class Out(Protocol):
    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...

    def isatty(self) -> bool: ...


class ForgivingSink:
    """Writes at once and forgets what cannot be written."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def write(self, text: str) -> None:
        try:
            self._out.write(text)
        except (OSError, ValueError, AttributeError):
            # the stream is full, closed, or was never there
            return

    def flush(self) -> None:
        try:
            self._out.flush()
        except (OSError, ValueError, AttributeError):
            return

    def isatty(self) -> bool:
        try:
            return self._out.isatty()
        except (ValueError, AttributeError):
            return False


class ThreadedSink(ForgivingSink):
    """Writes on a thread of its own: a reader that stops reading stops no request. Past ``bound`` waiting lines new
    ones are dropped and counted."""

    def __init__(self, out: Out, bound: int = 4096) -> None:
        super().__init__(out)
        self._lines: deque[str] = deque()
        self._bound = bound
        self._dropped = 0
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        atexit.register(self.drain)

    def write(self, text: str) -> None:
        with self._changed:
            if len(self._lines) >= self._bound:
                self._dropped += 1
                return
            self._lines.append(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ninfer-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """The thread flushes after each batch."""

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until everything is written, no longer than ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                batch, dropped = "".join(self._lines), self._dropped
                self._lines.clear()
                self._dropped, self._busy = 0, True
            if dropped:
                batch += f"{dropped} log lines were dropped: nobody read them fast enough\n"
            super().write(batch)
            super().flush()
