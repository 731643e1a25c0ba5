"""The outermost ASGI application: what holds for every request, whatever route it is for.

Request id, version header, readiness, who may come in, the doubled ``/v1``, HEAD, and a last net under everything
behind it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import structlog

from ninfer_core.api.http import new_request_id
from ninfer_core.errors import InternalError

from .app import App
from .gate import Gate
from .site import Desk, Site
from .state import ServerState
from .stream import Message, Receive, Send, as_api_error, quietly, send_whole

log = structlog.get_logger()


class Door:
    """ASGI 3. Only HTTP passes; the server is started without lifespan and websockets."""

    def __init__(self, app: App, site: Site, state: ServerState, version: str, gate: Gate | None = None) -> None:
        self._app, self._site, self._state = app, site, state
        self._gate = gate or Gate()
        self._version = version.encode("latin-1", "replace")

    def desk(self, path: str) -> Desk:
        """Who answers for a path."""
        return self._site.desk(single_v1(path))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = single_v1(scope["path"])
        desk = self._site.desk(path)
        request_id = new_request_id()
        marks = [
            (b"x-ninfer-version", self._version),
            (desk.request_id_header.encode("latin-1"), request_id.encode()),
            *self._gate.marks,
        ]
        out = _Outgoing(send, marks, head=scope["method"] == "HEAD")
        began = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                refusal = self._state.refusal() or self._gate.refusal(scope, path)
                if refusal is not None:
                    raise refusal
                preflight = self._gate.preflight(scope)
                if preflight is not None:
                    await send_whole(preflight, out.send)
                else:
                    await self._app(scope, path, request_id, receive, out.send)
            except (Exception, asyncio.CancelledError) as failure:
                # uvicorn cancels what is left at the end of its grace; a plugin may raise the same by mistake
                cut = isinstance(failure, asyncio.CancelledError)
                error = (self._state.refusal() or InternalError()) if cut else as_api_error(cast(Exception, failure))
                if out.status:
                    # the response has begun: let the server cut the connection
                    raise ConnectionAbortedError from None
                await quietly(send_whole(desk.refuse(error, request_id), out.send))
            finally:
                seconds = time.monotonic() - began
                log.debug("http", method=scope["method"], path=path, status=out.status, seconds=round(seconds, 6))


class _Outgoing:
    """Marks every response, and keeps the body of one to HEAD back."""

    def __init__(self, send: Send, marks: list[tuple[bytes, bytes]], *, head: bool) -> None:
        self.status = 0  # of the response that has begun
        self._send, self._marks, self._head = send, marks, head

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._marks]
        elif self._head:
            message["body"] = b""
        await self._send(message)


def single_v1(path: str) -> str:
    """``/v1/v1/...`` -> ``/v1/...``: a client given the wrong base URL doubles the prefix."""
    return path[3:] if path == "/v1/v1" or path.startswith("/v1/v1/") else path
