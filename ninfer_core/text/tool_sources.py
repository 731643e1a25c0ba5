"""Derived tool sources: the text inside line-numbered listings of tool results (``spec/speculation.md`` §9).

A model that was shown ``  12→    return x`` writes ``    return x``; copies are drawn from the latter.
"""

from __future__ import annotations

import re

_LINE = re.compile(r" *L?(?P<number>[0-9]+)(?P<style>: |\t|→| \| |\| )(?P<body>.*)", re.DOTALL)
_LEAST_LINES = 3
_MAX_NUMBER = (1 << 64) - 1


def derived_sources(text: str) -> list[str]:
    """The bodies of every run of at least three lines with consecutive numbers and one separator style, with their own
    line ends."""
    sources: list[str] = []
    run: list[str] = []
    expected: tuple[int, str] | None = None
    for line in text.split("\n"):
        found = _LINE.match(line)
        number = int(found["number"]) if found and len(found["number"]) <= 20 else -1
        if found is None or not 0 <= number <= _MAX_NUMBER:
            _close(run, sources)
            run, expected = [], None
            continue
        if (number, found["style"]) != expected:
            _close(run, sources)
            run = []
        run.append(found["body"])
        expected = (number + 1, found["style"])
    _close(run, sources, at_end=True)
    return sources


def _close(run: list[str], sources: list[str], at_end: bool = False) -> None:
    """A run that is not at the end of the text had a line break after its last line too."""
    if len(run) >= _LEAST_LINES:
        sources.append("\n".join(run) + ("" if at_end else "\n"))
