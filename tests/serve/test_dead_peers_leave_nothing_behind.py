"""Clients that leave, clients that stop reading and a server that is told to stop, in every phase of a request:
afterwards nothing is held, and the next answer is what a fresh server says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from held_request import FLAGS, NEXT, PHASES, SCRIPT, VICTIM, Held, cut
from live_server import Live, eventually, read_all


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


def phases_of(thread: str) -> list[Any]:
    return [pytest.param(phase, id=f"{thread}-{phase}") for phase in PHASES]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "by", [pytest.param("close", id="llama.cpp-24496-close"), pytest.param("reset", id="vllm-54947-reset")]
)
def test_a_client_that_leaves_frees_everything(server, fresh, monkeypatch, phase, by):
    with monkeypatch.context() as patch:
        held = Held(server, phase, patch)
        held.victim.close() if by == "close" else cut(held.victim)
        eventually(lambda: held.victim_is_cancelled, "noticed while its phase lasts")
        held.release()
        server.assert_at_rest()
    assert server.answer(*NEXT) == fresh


@pytest.mark.contract("run.beside")
@pytest.mark.parametrize("phase", phases_of("xorbitsai-inference-5548"))
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


@pytest.mark.contract("stop.requests")
@pytest.mark.parametrize("phase", phases_of("llama.cpp-27604"))
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


@pytest.mark.contract("run.beside")
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
