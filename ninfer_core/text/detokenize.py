"""Bytes to text, one whole Unicode scalar at a time."""

from __future__ import annotations

import codecs


class TextStream:
    """Incremental UTF-8: ``feed`` returns every scalar that is complete, and holds a part of one.

    A malformed maximal subpart becomes one U+FFFD as soon as it can no longer be completed, so the text is the same
    for every cut of the bytes.
    """

    __slots__ = ("_pending",)

    def __init__(self, pending: bytes = b"") -> None:
        self._pending = pending  # at most 3 bytes

    @property
    def pending(self) -> bool:
        """A part of a character is held."""
        return bool(self._pending)

    def copy(self) -> TextStream:
        return TextStream(self._pending)

    def feed(self, data: bytes) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def finish(self) -> str:
        """What is held, as text: nothing, or the U+FFFD of a sequence that never completed."""
        text, _ = codecs.utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text


def decode(data: bytes) -> str:
    """Whole bytes to text; each malformed maximal subpart is one U+FFFD."""
    return data.decode("utf-8", "replace")
