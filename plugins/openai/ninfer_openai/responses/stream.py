"""A Response as an event stream: its beginning, its Items, its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ninfer_core.api import ApiError, Called, Delta, Done, Event, Generation, Result, Started
from ninfer_core.api.http import sse_event

from .answer import Answer, Style
from .items import Item
from .response import Head, counts

Finish = Callable[[Result, Sequence[Item]], dict[str, Any]]
"""Makes the terminal object, and keeps it where that was asked for. May raise ApiError."""


class EventStream:
    """One pass over a generation. Every event has the next sequence number."""

    def __init__(self, generation: Generation, head: Head, style: Style, finish: Finish) -> None:
        self._generation = generation
        self._head, self._finish = head, finish
        self._answer = Answer(style)
        self._number = 0
        self._started: Started | None = None
        self._output = self._reasoning = 0  # tokens of the answer so far

    async def chunks(self) -> AsyncIterator[bytes]:
        """Framed events up to the terminal one. An ApiError before the first is an ordinary refusal."""
        async with self._generation:
            async for event in self._generation:
                self._count(event)
                if isinstance(event, Started):
                    yield self._begin()
                told = b"".join(self._frame(kind, members) for kind, members in self._answer.feed(event))
                if told:
                    yield told
                if isinstance(event, Done):
                    response = self._finish(event.result, self._answer.items)
                    kind = "completed" if response["status"] == "completed" else "incomplete"
                    yield self._frame(f"response.{kind}", {"response": response})

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that has begun, be it with a heartbeat alone."""
        begin = b"" if self._number else self._begin()
        response = self._head.failed(error, self._answer.so_far(), self._used())
        return begin + self._frame("response.failed", {"response": response})

    def _count(self, event: Event) -> None:
        match event:
            case Started():
                self._started = event
            case Delta() | Called():
                self._output = event.timings.predicted_n
                if isinstance(event, Delta) and event.channel == "reasoning":
                    self._reasoning += len(event.token_ids)

    def _used(self) -> dict[str, Any] | None:
        """What a stream that is cut has used; nothing, where it had not been begun."""
        if self._started is None:
            return None
        reasoning = min(self._reasoning, self._output)
        return counts(self._started.prompt_tokens, self._started.reused_tokens, self._output, reasoning)

    def _begin(self) -> bytes:
        running = {"response": self._head.running()}
        return self._frame("response.created", running) + self._frame("response.in_progress", running)

    def _frame(self, kind: str, members: dict[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return sse_event(event, event=kind)
