"""Reasoning and answer: which channel each piece of generated text belongs to."""

from __future__ import annotations

from enum import Enum

from ninfer_core.api import ReasoningSyntax
from ninfer_core.api.jobs import Channel

WHITE_SPACE = " \t\r\n"
"""What may follow a close tag, and what is dropped around it."""

Pieces = list[tuple[Channel, str]]


class _At(Enum):
    START = "nothing but white space yet; the model may open its reasoning"
    OPENED = "after the open tag; white space is dropped"
    REASONING = "inside the reasoning"
    CLOSED = "after the close tag; white space is dropped"
    CONTENT = "inside the answer"


class ChannelSplitter:
    """Splits generated text into reasoning and content.

    Reasoning closes at the first close tag followed by white space or by the end of the turn; a tag followed by
    anything else is reasoning text. The white space around the tags belongs to neither channel. Without ``syntax``
    everything is content. A turn that does not start in reasoning may open it, as the first thing it writes. Undecided
    text (white space before a possible tag, a part of a tag) is held.
    """

    __slots__ = ("_at", "_held", "_syntax")

    def __init__(self, syntax: ReasoningSyntax | None, in_reasoning: bool) -> None:
        self._syntax = syntax
        self._held = ""
        if syntax is None:
            self._at = _At.CONTENT
        else:
            self._at = _At.REASONING if in_reasoning else _At.START

    @property
    def in_reasoning(self) -> bool:
        return self._at in (_At.OPENED, _At.REASONING)

    @property
    def answers(self) -> bool:
        """Whatever comes is the answer."""
        return self._at is _At.CONTENT

    @property
    def may_answer(self) -> bool:
        """What comes now is the answer, or may turn out to be: nothing has opened a reasoning block yet."""
        return self._at in (_At.START, _At.CONTENT)

    @property
    def closed(self) -> bool:
        """The reasoning has closed and the answer not begun."""
        return self._at is _At.CLOSED

    @property
    def closing(self) -> bool:
        """The held text ends with the close tag or a beginning of it."""
        if self._syntax is None or self._at is not _At.REASONING:
            return False
        return self._held.endswith(self._syntax.close) or bool(_overlap(self._held, self._syntax.close))

    def copy(self) -> ChannelSplitter:
        if self._at is _At.CONTENT:
            return self  # nothing changes any more
        twin = ChannelSplitter.__new__(ChannelSplitter)
        twin._syntax, twin._held, twin._at = self._syntax, self._held, self._at
        return twin

    def feed(self, text: str) -> Pieces:
        """The pieces that are decided, in order."""
        if not text:
            return []
        if self._at is _At.CONTENT or self._syntax is None:
            return [("content", text)]
        rest, self._held = self._held + text, ""
        pieces: Pieces = []
        if self._at is _At.START:
            rest = self._start(rest, self._syntax.open)
        if self._at is _At.OPENED:
            rest = self._drop_white_space(rest, _At.REASONING)
        if self._at is _At.REASONING:
            rest = self._reason(rest, self._syntax.close, pieces)
        if self._at is _At.CLOSED:
            rest = self._drop_white_space(rest, _At.CONTENT)
        if rest:
            pieces.append(("content", rest))
        return pieces

    def finish(self) -> Pieces:
        """What is held, at the end of the turn: a complete close tag closes, anything else is text."""
        held, self._held = self._held, ""
        if self._at is _At.START and held:
            self._at = _At.CONTENT
            return [("content", held)]
        if self._at is _At.REASONING and self._syntax is not None:
            if held.endswith(self._syntax.close):
                self._at = _At.CLOSED
            elif held:
                return [("reasoning", held)]
        return []

    def _start(self, text: str, tag: str) -> str:
        begun = text.lstrip(WHITE_SPACE)
        if begun.startswith(tag):
            self._at = _At.OPENED
            return begun[len(tag) :]
        if tag.startswith(begun):
            self._held = text
            return ""
        self._at = _At.CONTENT
        return text

    def _drop_white_space(self, text: str, then: _At) -> str:
        text = text.lstrip(WHITE_SPACE)
        if text:
            self._at = then
        return text

    def _reason(self, text: str, tag: str, pieces: Pieces) -> str:
        search = 0
        while (at := text.find(tag, search)) >= 0:
            end = at + len(tag)
            if end == len(text):
                break
            if text[end] in WHITE_SPACE:
                self._publish(text[:at].rstrip(WHITE_SPACE), pieces)
                self._at = _At.CLOSED
                return text[end:]
            search = at + 1
        undecided = at if at >= 0 else len(text) - _overlap(text, tag)
        keep = len(text[:undecided].rstrip(WHITE_SPACE))
        self._publish(text[:keep], pieces)
        self._held = text[keep:]
        return ""

    @staticmethod
    def _publish(text: str, pieces: Pieces) -> None:
        if text:
            pieces.append(("reasoning", text))


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of ``text`` that a tag may begin with."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
