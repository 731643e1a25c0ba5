"""A server process on an engine that only says "x", for the tests of start and stop: one JSON argument.

``load_seconds`` the load takes, ``load_until`` names a file it waits for, ``pause_seconds`` pass between two events,
``fail_after`` an engine-wide failure. Written out here because the package of fakes imports torch, which takes longer
than all these tests.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import structlog

from ninfer_core import logs
from ninfer_core.api import ApiError, Delta, Event, ModelInfo, OptionValues, Result, Started, StartupError, Timings
from ninfer_core.cli.main import guarded
from ninfer_core.plugins import load as load_plugins
from ninfer_core.serve.run import serve

log = structlog.get_logger()
INFO = ModelInfo(
    id="fake",
    path="fake.ninfer",
    created=0,
    architecture="fake",
    max_context=4096,
    trained_context=4096,
    vocab_tokens=256,
    hidden_size=1,
    parameters=1,
    weight_bytes=1,
    weight_formats=("bf16",),
    max_concurrency=1,
    has_chat=True,
    thinks_by_default=False,
)


class Engine:
    """The life of a real one: it starts, stops with an error for everybody, and can fail."""

    info = INFO
    failed: str | None = None
    stopped: ApiError | None = None

    def __init__(self, settings: dict[str, Any]) -> None:
        self.fail_after = settings.get("fail_after")
        self.pause_seconds = settings.get("pause_seconds", 0)

    def start(self, loop: asyncio.AbstractEventLoop, *, on_failed: Any) -> None:
        def fail() -> None:
            self.failed = "InvariantError"
            on_failed()

        if self.fail_after is not None:
            loop.call_later(self.fail_after, fail)

    def stop(self, error: ApiError) -> None:
        self.stopped = error

    def join(self, timeout: float) -> bool:
        return True

    async def chat(self, job: Any) -> Generation:
        log.info("asked")
        return Generation(self)

    complete = chat


class Generation:
    """Never ends by itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __aiter__(self) -> AsyncIterator[Event]:
        yield Started(prompt_tokens=1, reused_tokens=0)
        while True:
            await asyncio.sleep(self.engine.pause_seconds)
            if self.engine.stopped is not None:
                raise self.engine.stopped
            yield Delta(channel="content", text="x", token_ids=(1,), timings=Timings())

    async def result(self) -> Result:
        async for _ in self:
            pass
        raise AssertionError

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def main(settings: dict[str, Any]) -> int:
    values = {
        "host": "127.0.0.1",
        "api_key": None,
        "cors": False,
        "allowed_host": (),
        "stats_port": None,
        "frontends": None,
        "max_request_mib": 1,
        "model_id": None,
        **settings,
    }
    logs.configure("info", False)

    def load(progress: Any) -> Any:
        progress.stage("loading weights")
        until = time.monotonic() + settings.get("load_seconds", 0)
        awaited = settings.get("load_until")
        while time.monotonic() < until or not (awaited is None or os.path.exists(awaited)):
            progress.advance(1, 2)
            time.sleep(0.01)
        if settings.get("broken"):
            raise StartupError("model.gguf: not a GGUF file")
        return Engine(settings)

    return guarded(serve, OptionValues(values, frozenset()), load_plugins(["openai", "llamacpp"]), load)


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1])))
