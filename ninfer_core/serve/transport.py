"""uvicorn, set up so that it carries bytes and decides nothing: no signals, no access log, no body of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

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
        http=_protocol(version, getattr(app, "desk", None)),
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


def _protocol(version: str, desk: Callable[[str], Any] | None) -> Any:
    """The HTTP parser; what it cannot parse is answered as the path's ``desk`` would, where a path is known."""
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from .protocol import Protocol
    from .site import CORE_DESK

    return type("Protocol", (Protocol,), {"version": version, "desk_of": staticmethod(desk or (lambda _: CORE_DESK))})
