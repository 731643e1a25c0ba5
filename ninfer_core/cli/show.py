"""An answer on the terminal."""

from __future__ import annotations

import re
from typing import TextIO

from ninfer_core.api import Result

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# a model's text must not move the cursor, set a title or ring the bell of the terminal that shows it
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """Shows an answer as it comes. On a terminal reasoning is dimmed and control characters are made visible; a
    redirected stdout gets the content alone, byte for byte."""

    def __init__(self, out: TextIO, *, silent: bool = False) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._silent = silent
        self._said: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._dimmed = False
        self._last = "\n"

    def write(self, channel: str, text: str) -> None:
        """One delta."""
        self._said[channel].append(text)
        if self._silent or not text or (channel == "reasoning" and not self._terminal):
            return
        if self._terminal and (channel == "reasoning") != self._dimmed:
            self._switch()
        shown = CONTROLS.sub("\ufffd", text) if self._terminal else text
        self._out.write(shown)
        self._out.flush()
        self._last = shown

    def end(self, note: str = "") -> None:
        """Close the line; what follows on the terminal starts below."""
        if self._silent:
            return
        if self._dimmed:
            self._out.write(PLAIN)
            self._dimmed = False
        if note or not self._last.endswith("\n"):
            self._out.write(f"{note}\n")
        self._out.flush()
        self._last = "\n"

    def said(self, channel: str) -> str:
        """All of one channel so far."""
        return "".join(self._said[channel])

    def _switch(self) -> None:
        if self._dimmed:
            # the answer starts on a line of its own below the reasoning
            self._out.write(PLAIN + ("\n" if self._last.endswith("\n") else "\n\n"))
        else:
            self._out.write(DIM)
        self._dimmed = not self._dimmed


def stats_line(result: Result) -> str:
    """Counts and rates of one generation."""
    timings = result.timings.to_json()
    line = (
        f"{result.prompt_tokens} prompt tokens ({result.cached_tokens} cached), {timings['prompt_per_second']:.1f}/s; "
        f"{result.completion_tokens} generated, {timings['predicted_per_second']:.1f}/s; ended by {result.finish}"
    )
    if "draft_n" in timings:
        line += f"; {timings['draft_n_accepted']} of {timings['draft_n']} drafts accepted"
    return line
