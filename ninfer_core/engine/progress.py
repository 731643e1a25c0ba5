"""How a start tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from the loading thread."""

    def stage(self, name: str) -> None:
        """A new stage begins: "loading weights", "warm-up"."""

    def advance(self, done: int, total: int) -> None:
        """Work of the current stage, in its own unit (bytes while weights load)."""


class Silent:
    """Progress nobody watches."""

    def stage(self, name: str) -> None:
        """Nothing to show."""

    def advance(self, done: int, total: int) -> None:
        """Nothing to show."""
