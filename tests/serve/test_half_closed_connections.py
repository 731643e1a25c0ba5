"""Clients that close their sending side, that end in the middle of a request, that ask before they were answered."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
from live_server import Live, eventually, read_all

from ninfer_core.serve import protocol

SCRIPT = {
    "replies": [{"match": "long", "text": "x", "finish": "never", "delay_ms": 5}],
    "default": {"text": "Hello."},
}
LONG = {"prompt": "long", "n_predict": 4000}
SHORT = {"prompt": "short"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    served = Live(SCRIPT, tmp_path_factory.mktemp("live"), "--greedy")
    yield served
    assert served.stop() == 0


def raw(live: Live, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", live.port), timeout=20)
    sock.sendall(data)
    return sock


def request(body: object, path: str = "/completion") -> bytes:
    data = msgspec.json.encode(body)
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def running(live: Live) -> int:
    return live.engine.worker.snapshot.gauges.running


def error_of(answer: bytes) -> dict[str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    assert b"connection: close" in head
    return msgspec.json.decode(body)["error"]


@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_a_half_closed_client_is_cancelled_and_told_if_it_still_can_be(live, stream):
    with live.connect("/completion", {**LONG, "stream": stream}) as sock:
        eventually(lambda: running(live) == 1, "it runs")
        began = sock.recv(1 << 16) if stream else b""
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    live.assert_at_rest()
    if stream:
        assert began.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1" not in answer, "an answer that has begun gets no second status line"
        assert not answer.endswith(b"0\r\n\r\n"), "nor does it look whole"
    else:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert error_of(answer)["message"] == protocol.HALF_CLOSED
    assert b"Hello." in live.answer("/completion", SHORT)


@pytest.mark.parametrize(
    "part", [b"GET /health HT", b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"]
)
def test_a_request_that_ends_in_its_middle_is_told_so(live, part):
    with raw(live, part) as sock:
        time.sleep(0.05)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["message"] == protocol.HALF_REQUEST
    live.assert_at_rest()


def test_an_idle_connection_that_closes_is_told_nothing(live):
    with raw(live, b"") as sock:
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


def test_a_request_before_the_answer_to_the_last_one_is_not_served_and_the_connection_says_so(live):
    with raw(live, request(SHORT) + request(SHORT)) as sock:
        answer = read_all(sock)
    assert len(re.findall(rb"HTTP/1\.1 ", answer)) == 1
    assert b"Hello." in answer
    live.assert_at_rest()


@pytest.mark.parametrize("more", [request(SHORT), b"\r\n", b"\r\n\x16\x03\x01 junk", b"x" * (protocol.HEAD_BYTES + 1)])
def test_a_client_that_leaves_after_sending_more_than_it_should_is_noticed(live, more):
    sock = raw(live, request(LONG))
    eventually(lambda: running(live) == 1, "it runs")
    sock.sendall(more)
    time.sleep(0.05)
    assert running(live) == 1
    sock.close()
    live.assert_at_rest()


@pytest.mark.parametrize("more", [b"\r\n", b"\r\njunk\r\n\r\n", b"x" * (protocol.HEAD_BYTES + 1)])
def test_what_follows_a_request_never_gets_into_its_answer(tmp_path, monkeypatch, more):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    live = Live(SCRIPT, tmp_path, "--greedy")
    with raw(live, request({**LONG, "n_predict": 60, "stream": True})) as sock:
        first = sock.recv(10)
        sock.sendall(more)
        answer = first
        while not answer.endswith(b"0\r\n\r\n"):
            answer += sock.recv(1 << 16)
    assert len(re.findall(rb"HTTP/1\.1 ", answer)) == 1
    assert b'"stop":true' in answer
    assert live.stop() == 0


def test_a_connection_is_kept_between_requests_that_wait_for_their_answers(live):
    with raw(live, b"") as sock:
        for _ in range(3):
            sock.sendall(request(SHORT))
            answer = b""
            while not answer.endswith(b"}"):
                answer += sock.recv(1 << 16)
            assert b"Hello." in answer


@pytest.mark.contract("messages.errors.id")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/v1/messages/count_tokens"])
def test_a_half_closed_messages_client_reads_its_own_envelope(live, path):
    data = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n\r\n{" % path.encode()
    with raw(live, data) as sock:
        sock.shutdown(socket.SHUT_WR)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    told = msgspec.json.decode(body)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert b"\r\nrequest-id: " + told["request_id"].encode() in head
    assert b"x-request-id" not in head
