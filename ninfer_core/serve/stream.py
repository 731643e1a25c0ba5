"""One exchange on the wire: the body in, the handler run while the client is there, the response out."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import structlog

from ninfer_core.api import ApiError, HttpResponse, Unavailable
from ninfer_core.errors import InternalError, RequestTimeout

log = structlog.get_logger()

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 60.0  # a body may pause this long between two pieces


class ClientGone(Exception):
    """The client closed the connection before its request was whole."""


async def awake(receive: Receive, ended: asyncio.Event) -> Message:
    """The next message of a body; Unavailable once the server ends, RequestTimeout for a client gone silent."""
    arriving = asyncio.ensure_future(receive())
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({arriving, ending}, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if arriving.done():
            return arriving.result()
        if ended.is_set():
            raise Unavailable(message="The server is stopping.")
        raise RequestTimeout(SILENCE_SECONDS)
    finally:
        ending.cancel()
        arriving.cancel()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; cancel it when the client goes away. Returns when it has ended either way."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            # the work cleans up after itself before this exchange ends
            await asyncio.wait({task})
            if not task.cancelled() and (failure := task.exception()) is not None:
                log.debug("cleanup_failed", error=type(failure).__name__)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_whole(response: HttpResponse, send: Send) -> None:
    """A response whose body is known."""
    headers = _headers(response)
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


async def send_stream(response: HttpResponse, send: Send, refuse: Callable[[ApiError], HttpResponse]) -> None:
    """Drive ``response.stream`` to its end, with heartbeats in its silences.

    Nothing awaits before the stream's own first step: a stream that was never begun could not cancel what feeds it.
    """
    assert response.stream is not None
    line = _Line(response, send)
    beat = asyncio.ensure_future(line.beat()) if response.heartbeat else None
    try:
        async for chunk in response.stream:
            await line.put(chunk)
    except Exception as failure:
        error = as_api_error(failure)
        if beat is not None:
            beat.cancel()
        if not line.begun:
            await send_whole(refuse(error), send)
            return
        if response.late_error is None:
            raise _Cut from failure
        await line.put(response.late_error(error))
    finally:
        if beat is not None:
            beat.cancel()
        close = getattr(response.stream, "aclose", None)
        if close is not None:
            await close()
    await line.end()


class _Cut(Exception):
    """A stream that cannot say how it ended; the connection is cut."""


class _Line:
    """The sending side of a stream; the status line goes out with the first chunk or heartbeat."""

    def __init__(self, response: HttpResponse, send: Send) -> None:
        self.begun = False
        self._response, self._send = response, send
        self._turn = asyncio.Lock()  # chunk and heartbeat must not overtake a status line that waits for the socket
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    async def put(self, chunk: bytes) -> None:
        async with self._turn:
            await self._begin()
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._last = self._loop.time()

    async def end(self) -> None:
        async with self._turn:
            await self._begin()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def beat(self) -> None:
        """Send the heartbeat whenever nothing was sent for HEARTBEAT_SECONDS; ends by cancellation."""
        while True:
            silence = self._loop.time() - self._last
            if silence >= HEARTBEAT_SECONDS:
                await self.put(self._response.heartbeat)
            else:
                await asyncio.sleep(HEARTBEAT_SECONDS - silence)

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            start = {"type": "http.response.start", "status": self._response.status}
            await self._send({**start, "headers": _headers(self._response)})


def as_api_error(failure: Exception) -> ApiError:
    """The refusal a client sees. Anything but an ApiError is a fault of ours: one log line, no detail on the wire."""
    if isinstance(failure, ApiError):
        return failure
    last = traceback.extract_tb(failure.__traceback__)[-1:]
    where = f"{last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno}" if last else "unknown"
    log.error("request_failed", error=type(failure).__name__, at=where)
    # the text of an exception may quote a prompt, so it is for debugging only
    log.debug("request_failed_trace", exc_info=failure)
    return InternalError()


def _headers(response: HttpResponse) -> list[tuple[bytes, bytes]]:
    named = dict(response.headers)
    if response.body or response.stream is not None:
        named.setdefault("content-type", response.media_type)
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in named.items()]


async def quietly(sending: Awaitable[None]) -> None:
    """Await a send whose failure nobody can be told about."""
    with contextlib.suppress(Exception):
        await sending
