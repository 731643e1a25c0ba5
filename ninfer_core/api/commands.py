"""Extra subcommands of ``ninfer``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """``ninfer NAME ARGS...``: ``run`` gets the arguments after the name and returns the exit status."""

    name: str
    summary: str  # one line for ``ninfer --help``
    run: Callable[[Sequence[str]], int]
