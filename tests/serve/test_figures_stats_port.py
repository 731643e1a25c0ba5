"""``--stats-port``: a second listener that answers a watchdog and nobody else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ninfer_core.serve.bind import listen

SCRIPT = Path(__file__).with_name("fake_server.py")


@contextmanager
def server(**settings: Any) -> Iterator[Any]:
    """A server process on ports of its own choice; ``said(pattern)`` waits for a line on stderr."""
    command = [sys.executable, str(SCRIPT), msgspec.json.encode({"port": 0, **settings}).decode()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    os.set_blocking(process.stderr.fileno(), False)
    text = ""

    def said(pattern: str, seconds: float = 20) -> str:
        nonlocal text
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text += (process.stderr.read() or b"").decode()
            found = re.search(pattern, text)
            if found:
                return found[found.re.groups]
            time.sleep(0.01)
        raise AssertionError(f"never said {pattern!r}: {text!r}")

    process.said = said
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stderr.close()


def ports(process: Any) -> tuple[str, str]:
    return tuple(
        f"http://127.0.0.1:{process.said(rf'{event} address=127.0.0.1:([0-9]+)')}"
        for event in (r" listening", "listening_for_stats")
    )


@pytest.mark.contract("stats.port")
def test_it_serves_four_routes_under_the_rules_of_the_main_port_and_closes_with_it(tmp_path):
    loaded = tmp_path / "loaded"
    with server(stats_port=0, load_until=str(loaded)) as process:
        main, stats = ports(process)
        for base in (main, stats):
            early = httpx.get(f"{base}/health")
            assert (early.status_code, early.headers["retry-after"]) == (503, "2")
            assert early.json()["error"]["code"] == "model_loading"
        loaded.touch()
        process.said("Press Ctrl.C twice to stop")
        health = httpx.get(f"{stats}/health")
        assert health.json() == httpx.get(f"{main}/health").json()
        assert "x-ninfer-version" in health.headers
        for path in ("/v1", "/v1/models", "/", "/nope"):
            response = httpx.get(stats + path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "route_not_found")
        assert httpx.post(f"{stats}/v1/chat/completions", json={"messages": []}).status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        for base in (main, stats):
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{base}/health")


def test_without_the_option_there_is_one_listener():
    with server() as process:
        process.said("Press Ctrl.C twice to stop")
        with pytest.raises(AssertionError, match="never said"):
            process.said("listening_for_stats", seconds=0.1)


def test_a_stats_port_in_use_ends_the_start_with_one_line_that_names_the_option():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with server(stats_port=port, load_seconds=60) as process:
            line = process.said(r"ninfer: (.+)\n")
            assert line == f"127.0.0.1:{port} is in use; choose another with --stats-port, or stop what listens there"
            assert process.wait(15) == 1


def test_the_two_ports_cannot_be_the_same():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with server(port=port, stats_port=port, load_seconds=60) as process:
        assert "--stats-port" in process.said(r"ninfer: (.+)\n")
        assert process.wait(15) == 1
