"""uvicorn's HTTP parser with bounds on what comes before a body, and refusals in the envelope of their route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ninfer_core.api import ApiError
from ninfer_core.api.http import new_request_id

from .site import CORE_DESK, Desk

HEAD_BYTES = 65_536  # of a request line and its header fields
HEAD_SECONDS = 30  # for them to arrive
HALF_REQUEST = "The connection was closed for sending before the request was whole."
HALF_CLOSED = "The connection was closed for sending before the answer; keep it open until the answer is whole."


class Protocol(HttpToolsProtocol):
    """Bounds what comes before a body: httptools joins the pieces of an endless header at quadratic cost, and a
    client that never ends its head holds a connection for nothing."""

    version = ""  # the running build's
    desk_of: Callable[[str], Desk]  # who answers for a path
    head_bytes = 0  # of the head under way
    in_body = False
    deaf = False  # what still arrives is not looked at
    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(exc)

    def expect_head(self) -> None:
        self.stop_timer()
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self.head_is_late)

    def stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def head_is_late(self) -> None:
        if self.waiting:
            self.stop_listening()
        elif self.head_bytes:
            self.refuse("408 Request Timeout", f"The request's head was not whole after {HEAD_SECONDS} seconds.")
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if self.in_body or self.transport.is_closing():
            super().data_received(data)
            return
        if not self.head_bytes:
            self.expect_head()
        self.head_bytes += len(data)
        super().data_received(data)
        if not self.in_body and self.head_bytes > HEAD_BYTES and not self.transport.is_closing():
            if self.waiting:
                self.stop_listening()
            else:
                self.refuse("431 Request Header Fields Too Large", f"The request's head exceeds {HEAD_BYTES} bytes.")

    def eof_received(self) -> None:
        """The client closed its sending side. One that has left sends nothing else, so it is taken to have left and its
        request is cancelled; one that still reads is told why."""
        if self.transport.is_closing():
            return
        if self.waiting:
            self.refuse("400 Bad Request", HALF_REQUEST if self.cycle.more_body else HALF_CLOSED)
        elif self.head_bytes:
            self.refuse("400 Bad Request", HALF_REQUEST)

    @property
    def waiting(self) -> bool:
        """A request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_headers_complete(self) -> None:
        self.head_bytes = 0
        self.stop_timer()
        if self.waiting:
            # sent before the answer to the one before it. A queue would stop reading, and so not notice a client that
            # leaves; a connection that ends with that answer says that this one was not looked at
            self.stop_listening()
            return
        self.in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.deaf:
            self.in_body = False
            super().on_message_complete()

    def stop_listening(self) -> None:
        """The answer under way is the last one here; its client is watched until then."""
        self.deaf, self.cycle.keep_alive = True, False

    def send_400_response(self, msg: str) -> None:
        if self.waiting and not self.in_body:
            self.stop_listening()
            return
        self.refuse("400 Bad Request", "The request is not valid HTTP/1.1.")

    def refuse(self, status: str, message: str) -> None:
        """Answer what is not handed on, or no longer, and close; an answer that has begun is cut."""
        desk = CORE_DESK
        if self.waiting:
            desk = self.desk_of(self.cycle.scope["path"])
            # whoever works on it learns now that nobody waits for it, and writes nothing after this
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        request_id = new_request_id()
        body = desk.refuse(ApiError("invalid_request", message), request_id).body
        lines = (
            f"HTTP/1.1 {status}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-ninfer-version: {self.version}",
            f"{desk.request_id_header}: {request_id}",
            "connection: close",
            "",
            "",
        )
        self.transport.write("\r\n".join(lines).encode("latin-1", "replace") + body)
        self.transport.close()
