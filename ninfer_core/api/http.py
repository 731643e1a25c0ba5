"""What a protocol frontend needs to speak HTTP: bodies in, JSON and event streams out, the common error envelope."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from ninfer_core.errors import ApiError

from .bodies import Body, LargeBody, beside, decode, decode_now, invalid_value, not_supported, quoted
from .frontends import HttpResponse

KEEP_ALIVE = b": keep-alive\n\n"
"""An event-stream comment: clients skip it, and the connection is seen to live."""

DONE = b"data: [DONE]\n\n"
"""How an OpenAI stream ends."""

EVENT_STREAM = "text/event-stream; charset=utf-8"

_encoder = msgspec.json.Encoder()


def new_request_id() -> str:
    """A fresh id for one exchange: ``req_`` and 32 hexadecimal digits."""
    return f"req_{secrets.token_hex(16)}"


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return _encoder.encode(value)


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """A whole JSON body."""
    return HttpResponse(status=status, body=to_json(value), headers=dict(headers or {}))


def error_object(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object: message, type, param where a place is known, code, then the extra fields."""
    members: dict[str, Any] = {"message": error.message, "type": error.type}
    if error.param is not None:
        members["param"] = error.param
    return {**members, "code": error.code, **error.fields}


def error_response(error: ApiError, request_id: str) -> HttpResponse:
    """The envelope of OpenAI's and llama.cpp's routes and of the core's own: ``{"error": {...}}``."""
    return json_response({"error": error_object(error)}, status=error.status, headers=error.headers)


def error_event(error: ApiError) -> bytes:
    """The same envelope as the last event of a stream that has begun."""
    return sse_event({"error": error_object(error)})


def sse_event(value: Any, *, event: str | None = None) -> bytes:
    """One server-sent event. JSON holds no raw line break, so one ``data:`` line is enough."""
    head = b"" if event is None else f"event: {event}\n".encode()
    return b"".join((head, b"data: ", _encoder.encode(value), b"\n\n"))


def event_stream(
    chunks: AsyncIterator[bytes],
    *,
    heartbeat: bytes = KEEP_ALIVE,
    late_error: Callable[[ApiError], bytes] = error_event,
) -> HttpResponse:
    """An event stream of framed chunks. Proxies are told neither to store nor to buffer it.

    An ApiError raised by ``chunks`` after their first chunk ends the stream with its event; before it, it is raised.
    """
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return HttpResponse(
        stream=_ending(chunks, late_error),
        media_type=EVENT_STREAM,
        headers=headers,
        heartbeat=heartbeat,
        late_error=late_error,
    )


async def _ending(chunks: AsyncIterator[bytes], late_error: Callable[[ApiError], bytes]) -> AsyncIterator[bytes]:
    begun = False
    try:
        async for chunk in chunks:
            begun = True
            yield chunk
    except ApiError as error:
        if not begun:
            raise
        yield late_error(error)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


__all__ = [
    "DONE",
    "EVENT_STREAM",
    "KEEP_ALIVE",
    "Body",
    "LargeBody",
    "beside",
    "decode",
    "decode_now",
    "error_event",
    "error_object",
    "error_response",
    "event_stream",
    "invalid_value",
    "json_response",
    "new_request_id",
    "not_supported",
    "quoted",
    "sse_event",
    "to_json",
]
