"""How names found in a file are shown in messages: one line, no control characters, never endless."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 120  # characters


def plain(name: object) -> str:
    """``name`` with control characters and lone surrogates escaped, cut at 120 characters."""
    text = str(name)
    if len(text) <= LONGEST and text.isprintable():
        return text
    printable = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[: LONGEST + 1])
    return printable if len(printable) <= LONGEST else printable[: LONGEST - 3] + "..."


def unbroken(text: str) -> str:
    """A sentence as one line, all of it, with control characters and lone surrogates escaped."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def quoted(name: object) -> str:
    """``plain(name)`` in double quotes."""
    return f'"{plain(name)}"'


def listed(names: Iterable[object], most: int = 8) -> str:
    """A few names with commas between them, and how many more there are."""
    names = list(names)
    shown = ", ".join(plain(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def shaped(shape: Iterable[int]) -> str:
    """``[2, 3]``."""
    return "[" + ", ".join(str(n) for n in shape) + "]"
