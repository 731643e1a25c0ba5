"""The Items of an answer as they grow, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from ninfer_core.api import Called, Delta, Done, Event, GeneratedCall, Result, TokenLogprob
from ninfer_core.api.jobs import Channel

from ..logprobs import TokenBytes, token_records
from .items import CallItem, Ids, Item, MessageItem, OutputText, ReasoningItem, ReasoningText, SummaryText
from .response import STATUS
from .tools import Wire

PLACEHOLDER = SummaryText(text="The model's reasoning is in this item's content; no summary of it is made.")

Told = tuple[str, dict[str, Any]]
"""An event's type and its other members."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """What one answer's Items show. ``token_bytes``: None where no log probabilities were asked for."""

    ids: Ids
    on_the_wire: Callable[[str], Wire]
    summarizes: bool = False
    encrypts: bool = False
    token_bytes: TokenBytes | None = None

    def records(self, records: Sequence[TokenLogprob], *, exact: bool) -> list[dict[str, Any]]:
        """Log probabilities; ``exact``: with the tokens' bytes, as an Item has them and an event does not."""
        return [] if self.token_bytes is None else token_records(records, self.token_bytes, exact=exact)


@dataclass(slots=True)
class _Growing:
    """A text Item that is not whole yet."""

    id: str
    channel: Channel
    index: int
    pieces: list[str] = field(default_factory=list)
    records: list[TokenLogprob] = field(default_factory=list)

    def place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}


class Answer:
    """Fed with the events of a generation up to ``Done``; ``items`` are whole then.

    Log probabilities belong to the message, those of a call's markup too. A message is whole before the calls after it
    begin, so where they were asked for the calls wait for the end.
    """

    def __init__(self, style: Style) -> None:
        self.items: list[Item] = []
        self._style = style
        self._open: _Growing | None = None
        self._early: list[TokenLogprob] = []  # records of tokens before the message's first text
        self._held: list[GeneratedCall] = []

    def feed(self, event: Event) -> Iterator[Told]:
        """What a stream tells of this event."""
        match event:
            case Delta(channel=channel, text=text, logprobs=records):
                if text:
                    yield from self._opened(channel)
                    yield from self._grown(text, records)
                else:
                    yield from self._recorded(records)
            case Called(call=call, logprobs=records):
                yield from self._recorded(records)
                if self._style.token_bytes is not None:
                    self._held.append(call)
                else:
                    yield from self._closed("completed")
                    yield from self._called(call)
            case Done(result=result, logprobs=records):
                yield from self._recorded(records)
                yield from self._ended(STATUS[result.finish])

    def so_far(self) -> list[Item]:
        """The Items of an answer that ends here, for nobody has said more: one under way is incomplete."""
        for _ in self._closed("incomplete"):
            pass
        for call in self._held:
            for _ in self._called(call):
                pass
        self._held = []
        return self.items

    def _ended(self, status: str) -> Iterator[Told]:
        speaks = any(isinstance(item, MessageItem) for item in self.items)
        if self._open is None or self._open.channel == "reasoning":
            called = self._held or any(isinstance(item, CallItem) for item in self.items)
            if status == "completed" and not called and not speaks:
                # an answer that is whole and empty is an answer still
                yield from self._opened("content")
                yield from self._recorded(())
        yield from self._closed("completed" if status == "completed" or self._held else "incomplete")
        for call in self._held:
            yield from self._called(call)
        self._held = []

    def _opened(self, channel: Channel) -> Iterator[Told]:
        """The Item that text of this channel belongs to is open."""
        if self._open is not None and self._open.channel == channel:
            return
        yield from self._closed("completed")
        growing = _Growing(
            id=self._style.ids.new("msg" if channel == "content" else "rs"), channel=channel, index=len(self.items)
        )
        self._open = growing
        item: Item
        if channel == "content":
            item = MessageItem(id=growing.id, role="assistant", status="in_progress", content=())
        else:
            item = ReasoningItem(id=growing.id, status="in_progress", summary=self._summary, content=())
        yield "response.output_item.added", {"output_index": growing.index, "item": item}
        if channel == "reasoning" and self._style.summarizes:
            yield from _summary_told(growing)
        part = OutputText(text="") if channel == "content" else ReasoningText(text="")
        yield "response.content_part.added", {**growing.place(), "part": part}

    def _grown(self, text: str, records: Sequence[TokenLogprob]) -> Iterator[Told]:
        growing = self._open
        assert growing is not None
        growing.pieces.append(text)
        if growing.channel == "reasoning":
            yield "response.reasoning_text.delta", {**growing.place(), "delta": text}
            return
        records, self._early = [*self._early, *records], []
        growing.records += records
        shown = self._style.records(records, exact=False)
        yield "response.output_text.delta", {**growing.place(), "delta": text, "logprobs": shown}

    def _recorded(self, records: Sequence[TokenLogprob]) -> Iterator[Told]:
        """Records that come without text: with the message that is open, or with its beginning."""
        self._early += records
        if self._early and self._open is not None and self._open.channel == "content":
            yield from self._grown("", ())

    def _closed(self, status: str) -> Iterator[Told]:
        growing, self._open = self._open, None
        if growing is None:
            return
        text = "".join(growing.pieces)
        item: Item
        if growing.channel == "content":
            exact, shown = (self._style.records(growing.records, exact=one) for one in (True, False))
            said = OutputText(text=text, logprobs=tuple(exact))
            yield "response.output_text.done", {**growing.place(), "text": text, "logprobs": shown}
            item = MessageItem(id=growing.id, role="assistant", status=status, content=(said,))
        else:
            thought = ReasoningText(text=text)
            yield "response.reasoning_text.done", {**growing.place(), "text": text}
            mirror = text if self._style.encrypts else UNSET
            item = ReasoningItem(
                id=growing.id, status=status, summary=self._summary, content=(thought,), encrypted_content=mirror
            )
        yield "response.content_part.done", {**growing.place(), "part": item.content[0]}
        self.items.append(item)
        yield "response.output_item.done", {"output_index": growing.index, "item": item}

    def _called(self, call: GeneratedCall) -> Iterator[Told]:
        """A call is whole when it is known."""
        namespace, name = self._style.on_the_wire(call.name)
        ids, index = self._style.ids, len(self.items)
        named = {"id": ids.new("fc"), "call_id": ids.new("call"), "namespace": namespace, "name": name}
        place = {"item_id": named["id"], "output_index": index}
        begun = CallItem(**named, status="in_progress", arguments="")  # type: ignore[arg-type]
        yield "response.output_item.added", {"output_index": index, "item": begun}
        yield "response.function_call_arguments.delta", {**place, "delta": call.arguments}
        yield "response.function_call_arguments.done", {**place, "name": name, "arguments": call.arguments}
        item = CallItem(**named, arguments=call.arguments)  # type: ignore[arg-type]
        self.items.append(item)
        yield "response.output_item.done", {"output_index": index, "item": item}

    @property
    def _summary(self) -> tuple[SummaryText, ...]:
        return (PLACEHOLDER,) if self._style.summarizes else ()


def whole(result: Result, style: Style) -> list[Item]:
    """The Items of an aggregate answer: those a stream of it would have ended with."""
    answer = Answer(style)
    for event in _as_events(result):
        for _ in answer.feed(event):
            pass
    return answer.items


def _as_events(result: Result) -> Iterator[Event]:
    """The shortest stream that ends in this result."""
    for channel, text in (("reasoning", result.reasoning), ("content", result.content)):
        if text:
            records = result.logprobs if channel == "content" else ()
            yield Delta(channel=channel, text=text, token_ids=(), timings=result.timings, logprobs=records)  # type: ignore[arg-type]
    for index, call in enumerate(result.calls):
        yield Called(index=index, call=call, token_ids=(), timings=result.timings)
    yield Done(result=result, logprobs=() if result.content else result.logprobs)


def _summary_told(growing: _Growing) -> Iterator[Told]:
    """The placeholder, whole at once."""
    place = {"item_id": growing.id, "output_index": growing.index, "summary_index": 0}
    yield "response.reasoning_summary_part.added", {**place, "part": SummaryText(text="")}
    yield "response.reasoning_summary_text.delta", {**place, "delta": PLACEHOLDER.text}
    yield "response.reasoning_summary_text.done", {**place, "text": PLACEHOLDER.text}
    yield "response.reasoning_summary_part.done", {**place, "part": PLACEHOLDER}
