"""What comes before a request is whole: heads without an end, bodies that stop coming, a stop in the middle of one."""

from __future__ import annotations

import socket
import time

import msgspec
import pytest
from live_server import Live, eventually, read_all

from ninfer_core.serve import protocol, stream

SCRIPT = {"default": {"text": "Hello."}}


@pytest.fixture
def live(tmp_path):
    served = Live(SCRIPT, tmp_path)
    yield served
    served.stop()


def connected(live: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=20)


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nx: ", b"GET /health?"])
def test_a_head_without_an_end_is_refused_after_64_kib(live, start):
    with connected(live) as sock:
        sock.sendall(start)
        sent = 0
        try:
            while sent < 4 << 20:
                sent += sock.send(b"a" * 16384)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 4 << 20  # the server closed long before
    assert b'"Hello."' in live.answer("/completion", {"prompt": "x"})


def test_the_refusal_of_a_long_head_says_why(live):
    with connected(live) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * (protocol.HEAD_BYTES + 1))
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"x-ninfer-version: " in answer
    assert msgspec.json.decode(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "invalid_request"


def test_a_long_body_in_the_first_piece_is_no_long_head(live):
    body = {"prompt": "x" * (3 * protocol.HEAD_BYTES), "n_predict": 1}
    assert b"context_length_exceeded" in live.answer("/completion", body)


def test_a_head_that_does_not_come_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    live = Live(SCRIPT, tmp_path)
    with connected(live) as silent, connected(live) as half:
        half.sendall(b"GET /health HTTP/1.1\r\nhost: ")
        assert read_all(half).startswith(b"HTTP/1.1 408 ")
        assert read_all(silent) == b""
    live.stop()


@pytest.mark.contract("run.open-connections")
def test_connections_that_are_merely_open_hold_nobody_up(live):
    """Client pools keep idle sockets; more of them than there are places for requests."""
    idle = [connected(live) for _ in range(100)]
    assert b'"Hello."' in live.answer("/completion", {"prompt": "x"})
    for sock in idle:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        sock.close()


def test_a_body_that_stops_coming_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.2)
    live = Live(SCRIPT, tmp_path)
    with connected(live) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        answer = sock.recv(4096)
        while not answer.endswith(b"}}"):
            more = sock.recv(4096)
            assert more, "cut"
            answer += more
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
    live.stop()


@pytest.mark.contract("stop.refuses")
def test_a_stop_answers_a_request_whose_body_is_still_coming(live):
    with connected(live) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        time.sleep(0.2)
        live.sigterm()
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"service_unavailable" in answer
    assert b"x-ninfer-version: " in answer
    eventually(lambda: live.status is not None, "an end")
    assert live.status == 0
