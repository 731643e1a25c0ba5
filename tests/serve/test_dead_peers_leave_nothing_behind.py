"""Clients that leave, clients that stop reading and a server that is told to stop, in every phase of a request:
afterwards nothing is held, and the next answer is what a fresh server says. llama.cpp 24496, 11720, 27604;
vllm 54947; xorbitsai/inference 5548."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import Hold, Live, eventually, read_all

SCRIPT = {
    "replies": [
        {"match": "long", "pieces": [f"{n}:" + "x" * 2000 for n in range(100)]},
        {"match": "next", "text": "the next answer"},
    ],
    "default": {"text": "abc"},
}
FLAGS = ("--max-context", "1024", "--prefill-chunk", "64", "--no-thinking", "--greedy", "--max-pending-requests", "4")
VICTIM = {"prompt": "long " + "p" * 200, "stream": True, "n_predict": 100}
NEXT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "next"}], "stream": True})
PHASES = ["queued", "preparing", "prefilling", "decoding", "finishing"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(SCRIPT, tmp_path_factory.mktemp("live"), *FLAGS, send_bytes=4096)
    yield live
    assert live.stop() == 0


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a server says that has answered nothing before."""
    live = Live(SCRIPT, tmp_path_factory.mktemp("fresh"), *FLAGS)
    answer = live.answer(*NEXT)
    assert b"".join(re.findall(rb'"content":"([^"]*)"', answer)) == b"the next answer"
    assert live.stop() == 0
    return answer


class Held:
    """A server whose victim has reached ``phase`` and goes no further until ``release``."""

    def __init__(self, live: Live, phase: str, patch: pytest.MonkeyPatch) -> None:
        self.live, self.hold = live, Hold()
        self.requests: list[Any] = []
        engine, worker = live.engine, live.engine.worker
        self.before: socket.socket | None = None
        self._spy(patch, worker.queue, "submit", self.requests.append)
        if phase == "queued":
            # the only lane is taken, and its request stands still
            self._stop_at(patch, worker.program, "decode", 1)
            self.before = live.connect("/completion", {"prompt": "hi"})
            self.hold.wait_until_reached()
            self.victim = self._ask()
            eventually(lambda: len(worker.queue) == 1, "queued")
            return
        place, name, call = {
            "preparing": (engine._prompts, "raw", 1),
            "prefilling": (worker.program, "prefill", 2),
            "decoding": (worker.program, "decode", 3),
            "finishing": (worker._publisher, "finished", 1),
        }[phase]
        self._stop_at(patch, place, name, call)
        self.victim = self._ask()
        self.hold.wait_until_reached()

    def _ask(self) -> socket.socket:
        return self.live.connect("/completion", VICTIM, receive_bytes=2048)

    def _stop_at(self, patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
        calls = iter(range(1, 1 << 30))
        self._spy(patch, place, name, lambda *_: self.hold() if next(calls) == call else None)

    def _spy(self, patch: pytest.MonkeyPatch, place: Any, name: str, see: Any) -> None:
        real = getattr(place, name)

        def seen(*args: Any, **named: Any) -> Any:
            see(*args)
            return real(*args, **named)

        patch.setattr(place, name, seen)

    def release(self) -> None:
        self.hold.go.set()
        if self.before is not None:
            with self.before:
                assert b'"content":"abc"' in read_all(self.before), "the request before it is not harmed"

    @property
    def victim_is_cancelled(self) -> bool:
        """The server knows: the request is marked, or it was given up before it became one."""
        generation = self.requests[-1].generation if len(self.requests) > (self.before is not None) else None
        return generation.cancelled if generation is not None else self.live.engine.capacity.held == 0


def cut(sock: socket.socket) -> None:
    """End a connection as a client that died does: by a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("by", ["close", "reset"])
def test_a_client_that_leaves_frees_everything(server, fresh, monkeypatch, phase, by):
    with monkeypatch.context() as patch:
        held = Held(server, phase, patch)
        held.victim.close() if by == "close" else cut(held.victim)
        eventually(lambda: held.victim_is_cancelled, "noticed while its phase lasts")
        held.release()
        server.assert_at_rest()
    assert server.answer(*NEXT) == fresh


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_stops_reading_holds_no_lane_and_is_freed_when_it_dies(server, fresh, monkeypatch, phase):
    with monkeypatch.context() as patch:
        held = Held(server, phase, patch)
        held.release()
        eventually(lambda: held.requests and held.requests[-1].generation._ended, "generated to its end")
        assert server.engine.worker.idle, "its lane waits for no reader"
        # 200 KB do not fit what the sockets hold: the response is not released yet
        assert server.engine.capacity.held == 1
        assert server.answer(*NEXT) == fresh, "others are served meanwhile"
        assert server.engine.capacity.held == 1
        cut(held.victim)
        server.assert_at_rest()
    assert server.answer(*NEXT) == fresh


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_ends_the_request_and_the_port_serves_again(fresh, tmp_path, monkeypatch, phase):
    live = Live(SCRIPT, tmp_path, *FLAGS)
    with monkeypatch.context() as patch:
        held = Held(live, phase, patch)
        live.sigterm()
        eventually(lambda: live.engine.worker.queue.closed_with is not None, "told to stop")
        held.hold.go.set()
        said = [read_all(sock) for sock in (held.victim, held.before) if sock is not None]
        assert live.stop() == 0
    for response in said:
        begun = response.startswith(b"HTTP/1.1 200")
        assert begun or response.startswith(b"HTTP/1.1 503")
        if phase == "finishing":
            assert response.count(b'"stop":true') == 1, "what had ended is not taken back"
        else:
            assert b'"code":"service_unavailable"' in response
    live.assert_at_rest()
    again = Live(SCRIPT, tmp_path, *FLAGS, port=live.port)
    assert again.answer(*NEXT) == fresh
    assert again.stop() == 0


def test_a_reader_that_pauses_stalls_nobody_and_may_still_read_everything(tmp_path):
    flags = [flag if flag != "1024" else "4096" for flag in FLAGS]
    live = Live(SCRIPT, tmp_path, *flags, "--max-concurrency", "2", send_bytes=4096)
    stalled = live.connect("/completion", VICTIM, receive_bytes=2048)
    reading = live.connect("/completion", VICTIM)
    whole = read_all(reading)
    assert b"99:" in whole
    assert whole.endswith(b"0\r\n\r\n")
    eventually(lambda: live.engine.capacity.held == 1, "the reader's request is over")
    late = read_all(stalled)
    assert len(late) > 200_000
    assert late.endswith(b"0\r\n\r\n")
    live.assert_at_rest()
    assert live.stop() == 0
