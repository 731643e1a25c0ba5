"""One running request between the engine thread, which produces events, and the event loop, which consumes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ninfer_core.api import ApiError, Done, Event, Result
from ninfer_core.engine.capacity import CapacityUnit, Seat


class LocalGeneration:
    """An ``api.Generation``. Events arrive through ``deliver`` on the event loop; only two flags cross threads the
    other way: ``cancelled``, which the engine samples at its boundaries, and ``only_end``, which its outbox reads."""

    def __init__(self, *, sampling: Mapping[str, Any], max_tokens: int, unit: CapacityUnit | Seat) -> None:
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.cancelled = False
        self.only_end = False  # the consumer waits for the result: no event before it need wake the loop
        self._unit = unit
        self._events: deque[Event | ApiError] = deque()
        self._arrived = asyncio.Event()
        self._ended = False  # the engine produced the end; the consumer may not have read it yet

    def deliver(self, item: Event | ApiError) -> None:
        """Event-loop side of a flush."""
        self._events.append(item)
        if isinstance(item, Done | ApiError):
            self._ended = True
            self._unit.done("engine")
        self._arrived.set()

    def cancel(self) -> None:
        """Ask the engine to stop this request at its next boundary; nothing happens to a finished one."""
        if not self._ended:
            self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events in order; ends after Done, raises ApiError when the request failed."""
        while True:
            while self._events:
                item = self._events.popleft()
                if isinstance(item, ApiError):
                    raise item
                yield item
                if isinstance(item, Done):
                    return
            self._arrived.clear()
            await self._arrived.wait()

    async def result(self) -> Result:
        self.only_end = True
        async for event in self:
            if isinstance(event, Done):
                return event.result
        raise asyncio.CancelledError

    async def __aenter__(self) -> LocalGeneration:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()
        self._unit.done("consumer")


class Outbox:
    """Events of one boundary, handed to the event loop in one thread-safe call. Used by the engine thread."""

    def __init__(self) -> None:
        self._batch: list[tuple[LocalGeneration, Event | ApiError]] = []
        self.loop: asyncio.AbstractEventLoop | None = None  # None before start: nobody listens during warm-up

    def put(self, generation: LocalGeneration | None, item: Event | ApiError) -> None:
        """Queue an event; ``generation`` is None for the engine's own warm-up."""
        if generation is None or (generation.only_end and not isinstance(item, Done | ApiError)):
            return
        self._batch.append((generation, item))

    def flush(self) -> None:
        """Hand the batch over. A loop that is gone took its consumers with it."""
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        if self.loop is None or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(_deliver_all, batch)


def _deliver_all(batch: list[tuple[LocalGeneration, Event | ApiError]]) -> None:
    for generation, item in batch:
        generation.deliver(item)
