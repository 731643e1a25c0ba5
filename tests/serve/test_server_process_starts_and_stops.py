"""A real process on a real socket: bound before it loads, stopped as the operator asks. No model is involved."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ninfer_core.errors import StartupError
from ninfer_core.serve.bind import listen
from ninfer_core.serve.run import announce

SCRIPT = Path(__file__).with_name("fake_server.py")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Process:
    """One server; its stderr is a pipe, or a terminal of its own."""

    def __init__(self, terminal: bool, nohup: bool, settings: dict[str, Any]) -> None:
        self.read_end, write_end = pty.openpty() if terminal else os.pipe()
        command = [sys.executable, str(SCRIPT), msgspec.json.encode({"port": 0, **settings}).decode()]
        self.process = subprocess.Popen(
            command,
            stderr=write_end,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            # whatever the tests themselves were started with
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL),  # noqa: PLW1509
        )
        os.close(write_end)
        os.set_blocking(self.read_end, False)
        self.seen = ""

    def read(self) -> str:
        """Everything said so far."""
        try:
            while chunk := os.read(self.read_end, 65536):
                self.seen += chunk.decode()
        except OSError:
            pass  # nothing more now, or the other end of the terminal closed
        return self.seen

    def until(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self.read())
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError(f"never said {pattern!r}: {self.seen!r}")

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.until(r'listening address=127.0.0.1:([0-9]+)')[1]}"

    def ready(self) -> str:
        self.until("Press Ctrl.C twice to stop")
        return self.base

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self, seconds: float = 15) -> int:
        status = self.process.wait(seconds)
        self.read()
        return status


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Process] = []

    def run(*, terminal: bool = False, nohup: bool = False, **settings: Any) -> Process:
        running.append(Process(terminal, nohup, settings))
        return running[-1]

    yield run
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)
        os.close(server.read_end)


@pytest.mark.contract("ready.503", "access.announced")
def test_it_answers_503_while_it_loads_and_200_afterwards(start, tmp_path):
    loaded = tmp_path / "loaded"
    server = start(load_until=str(loaded))
    base = server.base
    early = httpx.get(f"{base}/health")
    assert (early.status_code, early.headers["retry-after"]) == (503, "2")
    loaded.touch()
    server.ready()
    assert httpx.get(f"{base}/health").json()["status"] == "ok"
    assert f"{base}/v1" in server.read()
    # without a terminal: plain lines, no control sequence
    assert "startup stage='loading weights'" in server.seen
    assert "\x1b" not in server.seen


@pytest.mark.contract("access.announced")
@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("box.example", "http://box.example:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
    ],
)
def test_the_addresses_to_open_are_told_and_a_wildcard_is_loopback(capsys, host, base):
    announce(host, 8080, "qwen")
    assert {f"{base}/v1", f"{base}/health"} <= set(capsys.readouterr().err.split())


def test_a_load_that_fails_is_one_line_and_status_1(start):
    server = start(broken=True)
    assert server.ends() == 1
    assert server.seen.splitlines()[-1] == "ninfer: model.gguf: not a GGUF file"


@pytest.mark.contract("ready.bind")
def test_a_port_in_use_is_told_at_once_and_names_the_way_out(start):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(StartupError, match=rf"127\.0\.0\.1:{port} is in use; choose another with --port"):
            listen("127.0.0.1", port)
        assert time.monotonic() - began < 0.1
        server = start(port=port, load_seconds=60)
        assert server.ends() == 1
        assert "is in use" in server.seen


@pytest.mark.contract("ready.time-wait")
def test_a_port_in_time_wait_can_be_bound_again():
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    listener.setblocking(True)
    accepted, _ = listener.accept()
    accepted.close()  # the server's side closes first and stays in TIME_WAIT
    client.close()
    listener.close()
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "message"),
    [("no.such.host.invalid", "does not name an address"), ("192.0.2.1", "is not an address of this machine")],
)
def test_a_host_that_cannot_be_listened_on_is_refused_with_the_way_out(host, message):
    with pytest.raises(StartupError, match=message):
        listen(host, 0)


@pytest.mark.contract("http.dead-peers")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux")
def test_accepted_connections_notice_a_dead_peer():
    with listen("127.0.0.1", 0) as listener:
        client = socket.create_connection(listener.getsockname())
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


@pytest.mark.contract("stop.at-once", "stop.logged")
def test_sigterm_ends_streams_with_an_error_event_and_exits_0(start):
    server = start(pause_seconds=0.02)
    base = server.ready()
    with httpx.stream("POST", f"{base}/v1/chat/completions", json={**CHAT, "stream": True}, timeout=20) as response:
        lines = response.iter_lines()
        assert "assistant" in next(lines)
        server.signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert '"code":"service_unavailable"' in rest[-1]
    assert server.ends() == 0
    assert "server stopped" in server.seen


@pytest.mark.contract("stop.at-once")
def test_a_terminal_that_is_closed_stops_the_server_unless_hangups_are_ignored(start):
    closed, kept = start(pause_seconds=0.02), start(nohup=True)
    base, other = closed.ready(), kept.ready()
    with httpx.stream("POST", f"{base}/v1/chat/completions", json={**CHAT, "stream": True}, timeout=20) as response:
        lines = response.iter_lines()
        assert "assistant" in next(lines)
        for server in (closed, kept):
            server.signal(signal.SIGHUP)
        rest = [line for line in lines if line]
    assert '"code":"service_unavailable"' in rest[-1]
    assert closed.ends() == 0
    assert httpx.get(f"{other}/health").status_code == 200


@pytest.mark.contract("stop.requests")
def test_sigterm_ends_an_aggregate_with_503(start):
    server = start(pause_seconds=0.05)
    base = server.ready()
    command = [sys.executable, "-c", AGGREGATE, base]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server.until("asked")
    server.signal(signal.SIGTERM)
    assert client.communicate(timeout=20)[0].split() == ["503", "service_unavailable"]
    assert server.ends() == 0


AGGREGATE = """
import httpx, sys
r = httpx.post(sys.argv[1] + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}, timeout=20)
print(r.status_code, r.json()["error"]["code"])
"""


@pytest.mark.contract("stop.warning", "stop.confirmed")
def test_one_ctrl_c_only_warns_and_the_second_stops(start):
    server = start()
    base = server.ready()
    server.signal(signal.SIGINT)
    server.until("WARNING  'Press Ctrl.C again within 5 s to close'")
    assert httpx.get(f"{base}/health").status_code == 200
    server.signal(signal.SIGINT)
    assert server.ends() == 0
    assert "server stopped" in server.seen


@pytest.mark.contract("stop.asks")
def test_on_a_terminal_the_prompt_is_a_line_that_goes_away(start):
    server = start(terminal=True, load_seconds=0.5)
    server.ready()
    assert "loading weights" in server.seen
    server.signal(signal.SIGINT)
    server.until("\r\x1b\\[2KPress Ctrl.C again within 5 s to close$")
    server.signal(signal.SIGINT)
    assert server.ends() == 0


@pytest.mark.contract("stop.abandoned")
def test_a_further_ctrl_c_cuts_the_stop_short(start):
    server = start(pause_seconds=30)
    base = server.ready()
    # a raw request that never ends keeps the server stopping
    request = b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30\r\n\r\n" + msgspec.json.encode(
        {"prompt": "hi", "stream": True}
    ).ljust(30)
    with socket.create_connection(("127.0.0.1", int(base.rsplit(":", 1)[1]))) as client:
        client.sendall(request)
        server.until("asked")
        server.signal(signal.SIGTERM)
        server.until("stopping")
        server.signal(signal.SIGINT)
        assert server.ends(3) == 130


@pytest.mark.contract("stop.startup")
def test_one_ctrl_c_ends_a_start_at_once(start):
    server = start(load_seconds=60)
    server.until("loading weights")
    began = time.monotonic()
    server.signal(signal.SIGINT)
    assert server.ends() == 130
    assert time.monotonic() - began < 3


@pytest.mark.contract("stop.failure")
def test_an_engine_failure_ends_the_process_with_status_2(start):
    server = start(fail_after=0.3)
    server.ready()
    assert server.ends() == 2
    assert "engine_failed error=InvariantError" in server.seen


def test_bytes_that_are_not_http_are_refused_in_the_envelope(start):
    server = start()
    base = server.ready()
    with socket.create_connection(("127.0.0.1", int(base.rsplit(":", 1)[1]))) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"x-ninfer-version: " in head
    assert msgspec.json.decode(body)["error"]["code"] == "invalid_request"
    assert httpx.get(f"{base}/health").status_code == 200
