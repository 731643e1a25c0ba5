"""Bodies of many MiB through the whole server, on real sockets: answered as small ones are, and gone afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys

import msgspec
import pytest
from live_server import Live, eventually, read_all

from ninfer_core.serve import bodies

SCRIPT = {"replies": [{"match": "forever", "text": "x", "finish": "never"}], "default": {"text": "Hello."}}
MIB = 1 << 20
CHAT = "/v1/chat/completions"
TURN = {"messages": [{"role": "user", "content": "hi"}], "enable_thinking": False}
LARGE = "x" * (bodies.SPOOL_BYTES + MIB)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    served = Live(SCRIPT, tmp_path_factory.mktemp("large"), "--max-context", "4096", "--max-concurrency", "2")
    yield served
    assert served.stop() == 0


def status_and_error(answer: bytes) -> tuple[int, dict]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), msgspec.json.decode(body)["error"]


def test_a_large_member_that_nobody_reads_changes_nothing(live):
    small, large = (live.answer(CHAT, {**TURN, "seed": 1, **more}) for more in ({}, {"unknown": LARGE}))
    assert b"Hello." in small
    # the times in an aggregate have a length
    assert large.partition(b"\r\n\r\n")[2] == small.partition(b"\r\n\r\n")[2]


def test_a_prompt_that_cannot_fit_is_told_so(live):
    status, error = status_and_error(live.answer("/completion", {"prompt": LARGE}))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["n_ctx"] == 4096
    assert error["n_prompt_tokens"] > 4 * 4096
    assert "at least" in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/apply-template", "/tokenize"])
def test_every_route_refuses_a_large_body_in_its_own_words(live, path):
    with live.connect(path, {"prompt": "x", "content": "x", **TURN, "model": "another", "unknown": LARGE}) as sock:
        status, error = status_and_error(read_all(sock))
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    with live.connect(path, {"model": 7, "unknown": LARGE}) as sock:
        status, error = status_and_error(read_all(sock))
    assert status == 400
    assert error["param"]


def test_a_text_to_tokenize_is_bounded(live):
    status, error = status_and_error(live.answer("/tokenize", {"content": LARGE}))
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "content")


def test_a_stream_goes_on_beside_it(live):
    with live.connect("/completion", {"prompt": "forever", "n_predict": 4000, "stream": True}) as stream:
        assert stream.recv(1 << 16)
        assert status_and_error(live.answer(CHAT, {"messages": LARGE}))[0] == 400
        stream.recv(1 << 20)
        assert b'"content":"x"' in stream.recv(1 << 16)
    live.assert_at_rest()


def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing(live, monkeypatch):
    started = []
    real = subprocess.Popen

    def popen(command, **more):
        # a worker that never ends by itself
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **more))
        return started[-1]

    monkeypatch.setattr(bodies.subprocess, "Popen", popen)
    room = live.server._listeners[0][0]._app._bodies
    with live.connect(CHAT, {**TURN, "unknown": LARGE}):
        eventually(lambda: started, "a worker")
        assert room.held == 1
    eventually(lambda: started[0].poll() is not None, "its end")
    eventually(lambda: room.held == 0, "the body gone")
    live.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one-string", "small-messages", "unknown-string", "deep", "bad-end"])
def test_384_mib_are_answered(tmp_path, kind):
    size = 383 * MIB
    messages = b'{"messages":[{"role":"user","content":"hi"}],"enable_thinking":false'
    body, status = {
        "one-string": (b'{"messages":[{"role":"user","content":"' + b"x" * size + b'"}]}', 400),
        "small-messages": (b'{"messages":[' + b'{"role":"user","content":"hi"},' * (size // 31) + b"{}]}", 400),
        "unknown-string": (messages + b',"unknown":"' + b"x" * size + b'"}', 200),
        "deep": (b'{"messages":' + b"[" * size, 400),
        "bad-end": (messages + b',"unknown":"' + b"x" * size + b'",}', 400),
    }[kind]
    live = Live(SCRIPT, tmp_path, "--max-context", "4096")
    with socket.create_connection(("127.0.0.1", live.port), timeout=300) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode())
        sock.sendall(body)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:500]
    room = live.server._listeners[0][0]._app._bodies
    eventually(lambda: room.held == 0, "the body gone")
    live.assert_at_rest()
    assert live.stop() == 0
