"""Tool calls in an answer: what is content, what is a call, and when either may be published.

A *region* is a run of calls that some marker begins (``api.RegionReader``). Prose may quote markers, so of at most
``MAX_MARKERS`` the first whose region is complete and reaches the end of the answer is the turn's structure; what
stands before it is content. The first marker is trusted more: as soon as its region opens with a complete call, that is
the structure, whatever follows. When no region is complete, the first that opened a call is recovered: its complete
calls are kept, one that cannot be read becomes a call to ``malformed_tool_call``, and what follows is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ninfer_core.api.tools import GeneratedCall, RegionReader, ToolFallback, ToolReport, ToolSyntax, WrittenCall

from .channels import WHITE_SPACE
from .tool_types import ToolTypes, malformed_call

MAX_MARKERS = 16

Chain = Any
"""Text grown at its end and shared by copies: None, or (all before, last)."""
Piece = str | GeneratedCall


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReading:
    """What the calls of one request are read with. ``forced``: the prompt ends inside a call to that tool."""

    syntax: ToolSyntax
    types: ToolTypes
    forced: str | None = None
    single: bool = False  # keep the first call


class _In(Enum):
    TEXT = "content"
    OPENING = "behind a marker; whether it opens a call is not known"
    FIRST = "the first marker's region, before a complete call"
    TAKEN = "the region that is the turn's structure"
    HELD = "a region whose fate the end of the answer decides"
    DROPPED = "behind the calls"


class ToolReader:
    """Reads the content of one answer. The pieces do not depend on how the text is cut, but for cuts between them.

    Content is passed on at once, except what may belong to a call: the beginning of a marker, the text behind one that
    may open a call or has, and white space, which is dropped before a call. ``copy`` costs the same whatever is held.
    """

    def __init__(self, reading: ToolReading) -> None:
        self._reading = reading
        self._markers = _Markers(reading.syntax.markers)
        self._markers_left = MAX_MARKERS
        self._in = _In.TEXT
        self._begun = ""  # the beginning of a marker
        self._space: Chain = None  # white space at the end of the content
        self._marker = 0  # characters of the marker the region began with
        self._region: RegionReader | None = None
        self._held: Chain = None  # the region's text, while it may still be content
        self._count = 0  # calls published
        self._rejected: ToolFallback = "none"  # why the first marker without a call has none
        self._undeclared = False  # a call to some other tool came before
        self.report = ToolReport()
        if reading.forced is not None:
            self._markers_left -= 1
            self._region = self._open_region()
            self._region.feed(reading.syntax.opener(reading.forced))
            self._in = _In.TAKEN

    def copy(self) -> ToolReader:
        twin = ToolReader.__new__(ToolReader)
        twin.__dict__.update(self.__dict__)  # a copy a token: faster than naming them
        if self._region is not None:
            twin._region = self._region.copy()
        return twin

    def feed(self, text: str) -> list[Piece]:
        """What is certain now, in order: content first, calls after it."""
        out: list[Piece] = []
        if self._is_plain(text):
            out.append(text)
            return out
        while text:
            if self._in is _In.TEXT:
                text = self._scan(text, out)
            elif self._in is _In.OPENING:
                text = self._opening(text, out)
            else:
                self._inside(text, out)
                text = ""
        return out

    def finish(self, *, cut: bool) -> list[Piece]:
        """The rest, at the end of the answer. ``cut``: a limit ended it, not the model or a stop string."""
        out: list[Piece] = []
        while self._in is _In.OPENING:
            assert self._region is not None
            self._region.finish()
            out += self.feed(self._give_up(out))
        if self._in is _In.TEXT:
            self._emit(self._begun, out)
            self._emit_space(out)
            self._begun = ""
        elif self._in is _In.TAKEN:
            self._finish_taken(out, cut)
        elif self._in in (_In.FIRST, _In.HELD):
            self._resolve(_joined(self._held), out, cut)
        self._in = _In.DROPPED
        if not self._count:
            self._note(fallback=self._rejected)
        return out

    # ------------------------------------------------------------------ content

    def _is_plain(self, text: str) -> bool:
        """The common case: a piece of content with nothing held before it and nothing in it to hold."""
        return (
            self._in is _In.TEXT
            and text != ""
            and not self._begun
            and self._space is None
            and text[-1] not in WHITE_SPACE
            and not self._markers.may_begin_in(text)
        )

    def _scan(self, text: str, out: list[Piece]) -> str:
        """Pass content on up to a marker; what is left to read, from the marker on."""
        text, self._begun = self._begun + text, ""
        if not self._markers_left:
            self._emit_space(out)
            out.append(text)
            return ""
        found = self._markers.pattern.search(text)
        if found is None:
            keep = len(text) - self._markers.overlap(text)
            self._begun = text[keep:]
            self._emit(text[:keep], out)
            return ""
        self._emit(text[: found.start()], out)
        self._region, self._marker, self._held = self._open_region(), len(found[0]), None
        self._markers_left -= 1
        self._in = _In.OPENING
        return text[found.start() :]

    def _emit(self, text: str, out: list[Piece]) -> None:
        """Content, but for the white space at its end, which a call would drop."""
        body = text.rstrip(WHITE_SPACE)
        if body:
            self._emit_space(out)
            out.append(body)
        if len(body) < len(text):
            self._space = (self._space, text[len(body) :])

    def _emit_space(self, out: list[Piece]) -> None:
        if self._space is not None:
            out.append(_joined(self._space))
            self._space = None

    # ------------------------------------------------------------------ regions

    def _open_region(self) -> RegionReader:
        self._note(marker_seen=True)
        return self._reading.syntax.region(self._reading.types.names)

    def _opening(self, text: str, out: list[Piece]) -> str:
        """Read on behind a marker; what is left to read when it opens no call."""
        assert self._region is not None
        self._held = (self._held, text)
        calls = self._region.feed(text)
        if self._region.opened:
            first = self._markers_left == MAX_MARKERS - 1
            self._in = _In.FIRST if first else _In.HELD
            if first:
                self._take(calls, out)
            else:
                self._region = None  # read again when the answer is over
        elif self._region.failure is not None:
            return self._give_up(out)
        return ""

    def _give_up(self, out: list[Piece]) -> str:
        """A marker without a call is content; what stands behind it is read again."""
        assert self._region is not None
        assert self._region.failure is not None
        self._reject(self._region.failure.reason)
        text = _joined(self._held)
        self._in, self._region, self._held = _In.TEXT, None, None
        self._emit(text[: self._marker], out)
        return text[self._marker :]

    def _reject(self, reason: ToolFallback) -> None:
        if self._rejected == "none":
            self._rejected = reason
        self._undeclared = self._undeclared or reason == "undeclared_tool"

    def _inside(self, text: str, out: list[Piece]) -> None:
        if self._in in (_In.FIRST, _In.HELD):
            self._held = (self._held, text)
        if self._in in (_In.FIRST, _In.TAKEN):
            assert self._region is not None
            self._take(self._region.feed(text), out)

    def _take(self, calls: Sequence[WrittenCall], out: list[Piece]) -> None:
        """Publish what the first marker's region has complete, and look whether it goes on."""
        assert self._region is not None
        if calls:
            self._in, self._held, self._space = _In.TAKEN, None, None
            self._publish(calls, out)
        if self._region.failure is not None:
            if self._in is _In.TAKEN:
                self._recover(self._region, out, cut=False)
                self._in = _In.DROPPED
            else:
                self._in = _In.HELD

    def _finish_taken(self, out: list[Piece], cut: bool) -> None:
        region = self._region
        assert region is not None
        closing = region.closing() if self._reading.forced is not None and not self._count and not cut else None
        if closing is not None:
            self._note(forced_call_closed=True)
            self._publish(region.feed(closing), out)
        region.finish()
        if region.failure is not None:
            self._recover(region, out, cut=cut)

    def _resolve(self, text: str, out: list[Piece], cut: bool) -> None:
        """The fate of held text, which begins with the marker of a region that opened a call."""
        first, calls = self._read(text)
        region, found_calls, at = first, calls, 0
        while region.failure is not None:
            at += region.failure.at if region.opened else self._marker
            found = self._markers.pattern.search(text, at) if self._markers_left else None
            if found is None:
                break
            self._markers_left -= 1
            at, self._marker = found.start(), len(found[0])
            region, found_calls = self._read(text[at:])
        else:
            self._emit(text[:at], out)
            self._space = None
            self._publish(found_calls, out)
            return
        if self._undeclared:
            # the text of a call to some other tool may quote this one
            self._emit_space(out)
            out.append(text)
            return
        self._space = None
        self._publish(calls, out)
        self._recover(first, out, cut=cut)

    def _read(self, text: str) -> tuple[RegionReader, Sequence[WrittenCall]]:
        region = self._reading.syntax.region(self._reading.types.names)
        calls = region.feed(text)
        region.finish()
        return region, calls

    def _recover(self, region: RegionReader, out: list[Piece], *, cut: bool) -> None:
        """Keep what can be read of the element that cannot, and say what was wrong."""
        failure = region.failure
        assert failure is not None
        self._publish(region.unfinished(), out)
        self._note(fallback=failure.reason, recovered=self._count > 0, recovered_call_count=self._count)
        if failure.inside is None:
            self._note(trailing_content_dropped=failure.reason != "malformed_structure")  # else a closing is missing
        elif self._wants_more:
            if cut:
                failure = replace(failure, message=f"the answer reached its length limit, and {failure.message}")
            out.append(malformed_call(failure))
            self._count += 1
            self._note(malformed_call_reported=True, structured_calls=self._count)

    @property
    def _wants_more(self) -> bool:
        return not (self._reading.single and self._count)

    def _publish(self, calls: Sequence[WrittenCall], out: list[Piece]) -> None:
        for call in calls:
            if not self._wants_more:
                return
            typed = self._reading.types.call(call)
            out.append(typed.call)
            self._count += 1
            self._note(
                structured_calls=self._count,
                empty_arguments_omitted=self.report.empty_arguments_omitted + typed.omitted,
                mismatched_arguments=self.report.mismatched_arguments + typed.mismatched,
                duplicate_parameters_repaired=self.report.duplicate_parameters_repaired + typed.repeated,
            )

    def _note(self, **facts: Any) -> None:
        self.report = replace(self.report, **facts)


class _Markers:
    """Finding whole and begun markers."""

    __slots__ = ("_begun", "_firsts", "_longest", "pattern")

    def __init__(self, markers: Sequence[str]) -> None:
        self.pattern = re.compile("|".join(map(re.escape, markers)))
        self._begun = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._firsts = re.compile("[" + "".join(sorted({re.escape(marker[0]) for marker in markers})) + "]")
        self._longest = max(map(len, markers))

    def may_begin_in(self, text: str) -> bool:
        return self._firsts.search(text) is not None

    def overlap(self, text: str) -> int:
        """Characters at the end of ``text`` that a marker may begin with."""
        at = max(len(text) - self._longest + 1, 0)
        while found := self._firsts.search(text, at):
            if text[found.start() :] in self._begun:
                return len(text) - found.start()
            at = found.end()
        return 0


def _joined(chain: Chain) -> str:
    parts = []
    while chain is not None:
        chain, text = chain
        parts.append(text)
    return "".join(parts[::-1])
