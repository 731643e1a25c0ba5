"""The whole application behind its door, on a fake engine or a scripted model, spoken to as ASGI: no socket."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ninfer_core import options as command_line
from ninfer_core.api import OptionValues
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.progress import Silent
from ninfer_core.serve import door as door_module
from ninfer_core.serve.run import compose as compose_door
from ninfer_core.serve.state import ServerState
from ninfer_core.testing import FakeEngine, compose

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `live_server`

VERSION = "1.2.3+test"
OPEN_TO_ALL = {"host": "127.0.0.1", "api_key": None, "cors": False, "allowed_host": ()}
OPTIONS = {
    **OPEN_TO_ALL,
    "frontends": None,
    "max_request_mib": 1,
    "assistant_prefill": False,
    "usage_chunk_choice": False,
}


@dataclass
class Site:
    """A served fake engine."""

    door: Any
    state: ServerState
    engine: FakeEngine

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """One whole exchange; a body that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        transport = httpx.ASGITransport(self.door, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, content=content, **more)

    def get(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return asyncio.run(self.ask(method, path, body, **more))


Open = Callable[..., Site]


@pytest.fixture(scope="session")
def plugins() -> Any:
    return compose(["openai", "anthropic", "llamacpp"])


@pytest.fixture
def serve(plugins: Any) -> Open:
    """``serve(engine, **options)``: a ready site; ``engine=None`` is one that still loads."""

    def build(engine: FakeEngine | None = None, *, loading: bool = False, **options: Any) -> Site:
        state = ServerState()
        engine = engine or FakeEngine()
        if not loading:
            state.engine, state.phase = engine, "ready"  # type: ignore[assignment]
        values = OptionValues({**OPTIONS, **options}, frozenset())
        return Site(compose_door(values, plugins, state, VERSION), state, engine)

    return build


@pytest.fixture
def fixed_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "new_request_id", lambda: "req_" + "0" * 32)


@dataclass
class Wire:
    """An ASGI connection under a test's control: what was sent, and a client that leaves when told to."""

    path: str
    body: bytes = b""
    method: str = "POST"
    sent: list[Any] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    streaming: asyncio.Event = field(default_factory=asyncio.Event)  # two chunks went out
    _asked: int = 0

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")],
        }

    async def receive(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked == 1:
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) > 2:
            self.streaming.set()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body").decode()


@pytest.fixture
def wire() -> Callable[..., Wire]:
    return Wire


@functools.cache
def scripted_plugins() -> Any:
    """Immutable, so every server may share them."""
    return compose(["scripted", "kv_bf16", "openai", "anthropic", "llamacpp"])


class Scripted:
    """The real engine on a script, behind the door; one event loop for all its requests."""

    def __init__(self, script: dict[str, Any], folder: Path, *flags: str) -> None:
        file = folder / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        plugins = scripted_plugins()
        (model,), values = command_line.parse([f"scripted:{file}", *flags], plugins, "serve")
        self.runner = asyncio.Runner()
        self.engine = load_engine(model, values, plugins, Silent())
        self.engine.start(self.runner.get_loop())
        self.door = compose_door(values, plugins, ServerState(phase="ready", engine=self.engine), VERSION)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.door), base_url="http://127.0.0.1")

    def post(self, path: str, body: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.post(path, content=msgspec.json.encode(body), timeout=30)

        return self.runner.run(ask())

    def close(self) -> None:
        self.engine.stop()
        assert self.engine.join(10)
        self.runner.close()


OpenScripted = Callable[..., AbstractContextManager[Scripted]]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> OpenScripted:
    """``with scripted(script, *flags) as server``: a server on that script."""
    folder = tmp_path_factory.mktemp("scripts")

    @contextmanager
    def opened(script: dict[str, Any], *flags: str) -> Iterator[Scripted]:
        server = Scripted(script, folder, *flags)
        try:
            yield server
        finally:
            server.close()

    return opened
