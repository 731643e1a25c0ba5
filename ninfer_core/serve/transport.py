"""uvicorn, set up so that it carries bytes and decides nothing: no signals, no access log, no body of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ninfer_core.api import ApiError
from ninfer_core.api.http import error_response, new_request_id

KEEP_ALIVE_SECONDS = 75  # of an idle connection; client pools reuse theirs for about a minute
GRACE_SECONDS = 5  # for responses to drain once the server stops


class Carrier(uvicorn.Server):
    """uvicorn without its signal handling: ``serve.run`` decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def carrier(app: Any, version: str) -> Carrier:
    """A server for an already listening socket; run ``serve(sockets=[...])``, end it with ``should_exit = True``."""
    config = uvicorn.Config(
        app,
        http=_protocol(version),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # what goes wrong in a request is logged by the door
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Carrier(config)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def _protocol(version: str) -> Any:
    """The HTTP parser; what it cannot parse is answered in the common envelope."""
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Protocol(HttpToolsProtocol):
        def send_400_response(self, msg: str) -> None:
            request_id = new_request_id()
            error = ApiError("invalid_request", "The request is not valid HTTP/1.1.")
            body = error_response(error, request_id).body
            lines = (
                "HTTP/1.1 400 Bad Request",
                "content-type: application/json",
                f"content-length: {len(body)}",
                f"x-ninfer-version: {version}",
                f"x-request-id: {request_id}",
                "connection: close",
                "",
                "",
            )
            self.transport.write("\r\n".join(lines).encode("latin-1", "replace") + body)
            self.transport.close()

    return Protocol
