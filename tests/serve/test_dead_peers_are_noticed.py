"""What the sockets of accepted connections are told, and what a connection that does not drain may cost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from ninfer_core.api import HttpResponse
from ninfer_core.serve import bind
from ninfer_core.serve.stream import HEARTBEAT_SECONDS, send_stream, while_connected
from ninfer_core.serve.transport import Carrier, carrier, loop_factory

CHUNK = b"x" * 4096
PROBING = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}


def carried(app: Any, work: Callable[[Carrier, int], Coroutine[Any, Any, None]], *, send_bytes: int = 0) -> None:
    """Run ``work(carrier, port)`` beside a server of ``app`` on a real socket."""

    async def run() -> None:
        with bind.listen("127.0.0.1", 0) as sock:
            if send_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
            http = carrier(app, "v")
            serving = asyncio.ensure_future(http.serve(sockets=[sock]))
            try:
                await asyncio.wait_for(work(http, sock.getsockname()[1]), 20)
            finally:
                http.should_exit = True
                await serving

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())


async def until(claim: Callable[[], Any]) -> None:
    while not claim():  # noqa: ASYNC110 - what is waited for is state of uvicorn's
        await asyncio.sleep(0.002)


def connection(http: Carrier) -> Any:
    (only,) = http.server_state.connections
    return only


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux")
def test_connections_that_were_accepted_probe_their_peer():
    async def work(http: Carrier, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)):
            await until(lambda: http.server_state.connections)
            sock = connection(http).transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for name, value in PROBING.items():
                assert sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value, name

    carried(None, work)


@pytest.mark.contract("http.dead-peers")
def test_a_dead_peer_is_noticed_within_about_twenty_seconds():
    """Silent: by the probes. Streaming: by the first heartbeat that stays unacknowledged."""
    assert bind.IDLE_SECONDS + bind.PROBES * bind.PROBE_SECONDS <= 20
    assert HEARTBEAT_SECONDS + bind.RETRANSMIT_MS / 1e3 <= 20


class Endless:
    """A stream without end, served as the real one is; it counts what it was asked for."""

    def __init__(self) -> None:
        self.chunks, self.closed = 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        response = HttpResponse(stream=self.stream(), media_type="text/plain", heartbeat=b"beat")
        await while_connected(receive, send_stream(response, send, lambda error: response))

    async def stream(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.chunks += 1
                yield CHUNK
                await asyncio.sleep(0)
        finally:
            self.closed += 1


def test_a_reader_that_stops_stops_its_stream_and_no_other():
    app = Endless()

    async def work(http: Carrier, port: int) -> None:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stalled.connect(("127.0.0.1", port))
            stalled.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: http.server_state.connections and connection(http).flow.write_paused)
            before, waiting = app.chunks, connection(http).transport.get_write_buffer_size()
            assert waiting < (1 << 16) + 2 * len(CHUNK), "what waits for it is one full buffer"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            for _ in range(100):
                await reader.readexactly(len(CHUNK))
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await until(lambda: app.closed == 1)
            assert http.server_state.connections
            assert connection(http).transport.get_write_buffer_size() == waiting
            assert app.chunks - before >= 100
        await until(lambda: app.closed == 2)

    carried(app, work, send_bytes=4096)
