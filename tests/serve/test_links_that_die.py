"""A peer that no longer acknowledges anything, without a FIN or a reset: the server runs in one network namespace, its
clients in another, and the link between them goes down in the middle of their requests. Needs root, Linux and ``ip``;
skipped where namespaces may not be made."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from live_server import Live, eventually

from ninfer_core.serve import bind
from ninfer_core.serve import stream as stream_module

CLONE_NEWNET = 0x40000000
SERVER, CLIENT, ELSEWHERE = "10.199.83.1", "10.199.83.2", "192.0.2.1"
WIRE = ("nitserver", "nitclient")  # interface names have up to 15 letters
SCRIPT: dict[str, Any] = {
    "replies": [{"match": "next", "text": "the next answer", "delay_ms": 0}],
    "default": {"text": "x", "finish": "never", "delay_ms": 20},
    "prefill_delay_ms": 200,
}
FLAGS = (
    *("--max-concurrency", "3", "--max-context", "16384", "--kv-capacity", "49152", "--prefill-chunk", "64"),
    *("--concurrent-prefill", "--no-thinking", "--greedy"),
)
LONG = "p" * 10_000  # a prompt of half a minute
AGGREGATE = {"prompt": "aggregate", "n_predict": 9000}
STREAM = {"prompt": "stream", "n_predict": 9000, "stream": True}
PREFILLING = {"prompt": LONG, "n_predict": 9, "stream": True}
QUEUED = {"prompt": "queued", "n_predict": 9000, "stream": True}


class Namespace:
    """A network namespace that one thread lives in, with what it starts; gone when the thread ends."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.tid = 0
        self.do(self._enter)

    def do(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self._thread.submit(work, *arguments, **named).result(60)

    def ip(self, line: str) -> None:
        """``ip LINE`` as seen from here."""
        self.do(subprocess.run, ["ip", *line.split()], check=True, capture_output=True, timeout=10)

    def close(self) -> None:
        self._thread.shutdown()

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        self.tid = threading.get_native_id()


class Link:
    """Two namespaces and the wire between them."""

    def __init__(self) -> None:
        self.server, self.client = Namespace(), Namespace()
        here, there = WIRE
        try:
            self.server.ip(f"link add {here} type veth peer name {there} netns {self.client.tid}")
            self.server.ip(f"address add {SERVER}/24 dev {here}")
            self.client.ip(f"address add {CLIENT}/24 dev {there}")
            self.server.ip("link set lo up")
            self.server.ip(f"link set {here} up")
            self.client.ip(f"link set {there} up")
        except BaseException:
            self.close()
            raise

    def unplug(self) -> None:
        """The client's end goes down, as of a machine that lost its power."""
        self.client.ip(f"link set {WIRE[1]} down")

    def mute(self) -> None:
        """What the server sends arrives; nothing comes back."""
        self.client.ip(f"route add blackhole {SERVER}/32")

    def close(self) -> None:
        self.server.close()
        self.client.close()


@pytest.fixture
def link() -> Iterator[Link]:
    if not hasattr(socket, "TCP_USER_TIMEOUT") or shutil.which("ip") is None:
        pytest.skip("needs Linux and the command ip")
    try:
        made = Link()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces may not be made here: {error}")
    yield made
    made.close()


def cut_off(link: Link, folder: Path, cut: Callable[[Link], None], seconds: float) -> float:
    """Seconds until four requests are given up whose client is cut off: one that streams, one that waits for its whole
    answer, one whose prompt is being processed and one in the queue."""
    live = link.server.do(Live, SCRIPT, folder, *FLAGS, host=SERVER)
    clients: list[socket.socket] = []

    def ask(body: dict[str, Any]) -> socket.socket:
        clients.append(link.client.do(live.connect, "/completion", body))
        return clients[-1]

    worker = live.engine.worker
    streaming = ask(STREAM)
    ask(AGGREGATE)
    eventually(lambda: len(worker.lanes.decoding) == 2, "two decode")
    ask(PREFILLING)
    eventually(lambda: any(lane.frontier for lane in worker.lanes.staged), "one prefills")
    ask(QUEUED)
    eventually(lambda: len(worker.queue) == 1, "one waits")
    assert streaming.recv(1 << 16).startswith(b"HTTP/1.1 200")

    cut(link)
    began = time.monotonic()
    # a cut link is no news by itself: the requests go on until the kernel gives the peer up
    assert live.engine.capacity.held == 4
    eventually(lambda: live.engine.capacity.held == 0, "all four given up", seconds)
    spent = time.monotonic() - began
    live.assert_at_rest()
    assert worker.counters.requests == 0, "none reached its end"
    assert worker.counters.cancelled_prefills >= 1
    answer = link.server.do(live.answer, "/v1/chat/completions", {"messages": [{"role": "user", "content": "next"}]})
    assert b'"content":"the next answer"' in answer
    assert live.stop() == 0
    for sock in clients:
        sock.close()
    return spent


@pytest.mark.contract("http.dead-peers")
@pytest.mark.parametrize(
    "cut", [pytest.param(Link.unplug, id="llama.cpp-11720-unplugged"), pytest.param(Link.mute, id="vllm-54947-muted")]
)
def test_a_client_behind_a_dead_link_is_given_up_in_every_phase(link, tmp_path, monkeypatch, cut):
    """With the timeouts of the contract divided by ten."""
    monkeypatch.setattr(bind, "IDLE_SECONDS", 1)
    monkeypatch.setattr(bind, "PROBE_SECONDS", 1)
    monkeypatch.setattr(bind, "PROBES", 1)
    monkeypatch.setattr(bind, "RETRANSMIT_MS", 1500)
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.5)
    cut_off(link, tmp_path, cut, seconds=15)


@pytest.mark.contract("http.dead-peers")
@pytest.mark.slow
def test_a_client_behind_a_dead_link_is_given_up_within_about_twenty_seconds(link, tmp_path):
    assert cut_off(link, tmp_path, Link.unplug, seconds=40) < 25
