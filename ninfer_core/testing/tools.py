"""What every way to write tool calls must do, and prompts of a format without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from ninfer_core.api import PromptFormat, RegionReader, ToolSyntax, Unreadable, WrittenCall
from ninfer_core.text.prompt import PromptBuilder

STEPS = (1, 2, 3, 7)


def prompts(
    format: PromptFormat,
    *,
    thinking: bool | None = None,
    effort: str | None = None,
    preserve_thinking: bool | None = None,
    template: str | None = None,
) -> PromptBuilder:
    """What a server with these defaults renders: ``render(job)`` gives text, ``chat(job)`` tokens."""
    return PromptBuilder(
        format,
        default_thinking=thinking,
        default_effort=effort,
        default_preserve_thinking=preserve_thinking,
        template_override=template,
    )


class ToolSyntaxContract:
    """Subclass with the syntax and texts in it.

    ``complete``: whole regions of calls to ``names``, with the calls in each. ``broken``: texts that begin with a
    marker and are no region. ``forced``: what a model writes behind the opener of a call to the first name, complete.
    """

    syntax: ClassVar[ToolSyntax]
    names: ClassVar[Sequence[str]]
    complete: ClassVar[Mapping[str, tuple[WrittenCall, ...]]]
    broken: ClassVar[Sequence[str]]
    forced: ClassVar[str]

    def read(self, text: str, step: int | None = None) -> tuple[RegionReader, list[WrittenCall]]:
        region = self.syntax.region(frozenset(self.names))
        calls: list[WrittenCall] = []
        for at in range(0, len(text), step or max(len(text), 1)):
            calls += region.feed(text[at : at + (step or len(text))])
        region.finish()
        return region, calls

    def outcome(self, text: str, step: int | None = None) -> tuple[Unreadable | None, bool, tuple[object, ...]]:
        region, calls = self.read(text, step)
        return region.failure, region.opened, (*calls, "unfinished", *region.unfinished())

    def test_no_marker_begins_another_and_every_region_begins_with_one(self) -> None:
        markers = self.syntax.markers
        assert markers
        assert all(markers)
        assert not any(a != b and b.startswith(a) for a in markers for b in markers)
        assert all(text.startswith(markers) for text in (*self.complete, *self.broken))
        assert self.syntax.opener("x").startswith(markers)

    def test_complete_regions_are_read(self) -> None:
        for text, expected in self.complete.items():
            region, calls = self.read(text)
            assert (tuple(calls), region.failure, region.opened) == (expected, None, True)

    def test_broken_regions_fail_with_a_reason_and_a_place(self) -> None:
        for text in self.broken:
            region, _ = self.read(text)
            failure = region.failure
            assert failure is not None
            assert failure.message
            assert failure.reason != "none"
            assert 0 <= failure.at <= len(text)
            assert failure.inside is None or failure.inside in self.names

    @pytest.mark.parametrize("step", STEPS)
    def test_the_cut_of_the_text_never_shows(self, step: int) -> None:
        texts = [*self.complete, *self.broken]
        # regions cut off anywhere, and regions with text behind them
        texts += [text[:size] for text in self.complete for size in range(1, len(text), 3)]
        texts += [text + "\n" + more for text in self.complete for more in ("x", text, text[:5])]
        for text in texts:
            assert self.outcome(text, step) == self.outcome(text)

    def test_copies_read_on_by_themselves(self) -> None:
        for text in self.complete:
            for size in range(0, len(text), 4):
                region = self.syntax.region(frozenset(self.names))
                region.feed(text[:size])
                twin = region.copy()
                twin.feed("<nothing> like a call")
                twin.finish()
                calls = list(region.feed(text[size:]))
                region.finish()
                assert region.failure is None
                assert calls == list(self.complete[text])[len(self.complete[text]) - len(calls) :]

    def test_nothing_is_read_after_a_failure(self) -> None:
        for text in self.broken:
            region, _ = self.read(text)
            failure = region.failure
            for more in self.complete:
                assert not region.feed(more)
            assert region.failure == failure

    def test_tools_that_are_not_offered_are_not_called(self) -> None:
        for text in self.complete:
            region = self.syntax.region(frozenset())
            assert not region.feed(text)
            assert region.failure is not None
            assert region.failure.reason == "undeclared_tool"
            assert not region.opened

    def test_an_opener_begins_a_call_that_can_be_closed(self) -> None:
        opener = self.syntax.opener(self.names[0])
        region, calls = self.read(opener + self.forced)
        assert (len(calls), region.failure) == (1, None)
        bare = self.syntax.region(frozenset(self.names))
        assert not bare.feed(opener)
        assert bare.opened
        closing = bare.closing()
        assert closing
        (call,) = bare.feed(closing)
        assert call == WrittenCall(name=self.names[0])
