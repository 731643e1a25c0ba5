"""The whole server in a thread: real sockets, the real engine on a script, a SIGTERM that is called."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ninfer_core import options
from ninfer_core.engine.load import load_engine
from ninfer_core.serve.bind import listen
from ninfer_core.serve.run import Server
from ninfer_core.serve.transport import loop_factory
from ninfer_core.testing import compose

SECONDS = 20.0  # for anything that has to happen; a test that waits this long fails
LIVES = re.compile(
    rb'"(?:id|created|seed|prompt_ms|predicted_ms|prompt_per_\w+|predicted_per_\w+)":(?:"[^"]*"|[-+0-9.e]+)'
)


def eventually(claim: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
    """Wait for ``claim``; an AssertionError says ``what`` never came true."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.002)


class Hold:
    """Keeps the thread that calls it until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go.wait(SECONDS), "never let go"

    def wait_until_reached(self) -> None:
        assert self.reached.wait(SECONDS), "never reached"


class Live:
    """``serve.run.Server`` without a process around it; its signal handlers are kept here, to be called."""

    def __init__(
        self,
        script: dict[str, Any],
        folder: Path,
        *flags: str,
        host: str = "127.0.0.1",
        port: int = 0,
        send_bytes: int = 0,
    ) -> None:
        file = folder / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        plugins = compose(["scripted", "kv_bf16", "openai", "anthropic", "llamacpp"])
        (model,), values = options.parse([f"scripted:{file}", *flags], plugins, "serve")
        self.host = host
        self._sock = listen(host, port)
        if send_bytes:
            # accepted connections inherit it: a reader that stops is felt after this much
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        self.port = int(self._sock.getsockname()[1])
        self.server = Server(values, plugins, partial(load_engine, model, values, plugins), self._sock, None)
        self.status: int | None = None
        self._handlers: dict[int, Callable[[], None]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        eventually(lambda: self.server.state.phase == "ready" or not self._thread.is_alive(), "ready")
        assert self.server.state.engine is not None
        self.engine = self.server.state.engine

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self._loop = runner.get_loop()
            self._loop.add_signal_handler = self._handlers.__setitem__  # type: ignore[method-assign,assignment]
            self.status = runner.run(self.server.main())
        self._sock.close()

    def sigterm(self) -> None:
        """As if the process had got one."""
        self._loop.call_soon_threadsafe(self._handlers[signal.SIGTERM])

    def press(self) -> None:
        """As if somebody had pressed Ctrl+C."""
        self._loop.call_soon_threadsafe(self._handlers[signal.SIGINT])

    def stop(self) -> int | None:
        """The exit status."""
        if self._thread.is_alive():
            self.sigterm()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "never ended"
        return self.status

    def connect(self, path: str, body: dict[str, Any], *, receive_bytes: int = 0) -> socket.socket:
        """A connection on which this request has been sent."""
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(SECONDS)
        sock.connect((self.host, self.port))
        data = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        return sock

    def answer(self, path: str, body: dict[str, Any]) -> bytes:
        """The whole response, with ids, times and seeds taken out."""
        with self.connect(path, body) as sock:
            return without_lives(read_all(sock))

    def assert_at_rest(self) -> None:
        """No capacity, lane, page or state is held, nothing waits."""
        worker = self.engine.worker
        pool, states = worker.lanes.pool, worker.program.states
        eventually(lambda: self.engine.capacity.held == 0, "all capacity returned")
        eventually(lambda: worker.idle and not len(worker.queue), "all lanes free")
        assert pool.available == pool.total
        assert states.available == states.slots
        pool.check()


def read_all(sock: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while chunk := sock.recv(1 << 16):
        received += chunk
    return received


def without_lives(response: bytes) -> bytes:
    """What two servers have to agree on byte for byte."""
    # a chunk's length follows the digits of the times in it
    response = re.sub(rb"(?m)^(?:(x-request-id|date): .*|[0-9a-f]+)\r$", b"", response)
    return LIVES.sub(b"", response)
