"""What a Ctrl+C means: the first asks, the second stops, a further one abandons the stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal, TextIO

import structlog

from .state import Phase

log = structlog.get_logger()

CONFIRM_SECONDS = 5.0
PROMPT = "Press Ctrl+C again within 5 s to close"
CLEAR_LINE = "\r\x1b[2K"

Meaning = Literal["end_startup", "ask", "stop", "abandon"]


class Interrupts:
    """Remembers when the first press came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at: float | None = None

    def press(self, phase: Phase) -> Meaning:
        """The meaning of a Ctrl+C in ``phase``."""
        if phase == "loading":
            return "end_startup"
        if phase in ("stopping", "failed"):
            return "abandon"
        now = self._clock()
        if self._asked_at is not None and now - self._asked_at <= CONFIRM_SECONDS:
            return "stop"
        self._asked_at = now
        return "ask"


class Prompt:
    """The bottom line of a console, shown and taken away; a warning where there is no console."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._shown = False

    def show(self) -> None:
        if self._out.isatty():
            self._write(f"{CLEAR_LINE}{PROMPT}")
            self._shown = True
        else:
            log.warning(PROMPT)

    def clear(self) -> None:
        if self._shown:
            self._write(CLEAR_LINE)
            self._shown = False

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
