"""Messages behind the server's door: headers, refusals that come before the frontend, silence."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from ninfer_core.errors import Overloaded, QueueTimeout
from ninfer_core.serve import stream as stream_module
from ninfer_core.testing import FakeEngine

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BODY: dict[str, Any] = {"model": "claude", "messages": [{"role": "user", "content": "hi"}]}
ID = re.compile(r"req_[0-9a-f]{32}")


def check_refusal(response, status: int, kind: str) -> dict[str, Any]:
    """A refusal in Anthropic's envelope; its error object."""
    body = response.json()
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert (sorted(body), body["type"], body["error"]["type"]) == (["error", "request_id", "type"], "error", kind)
    assert body["request_id"] == response.headers["request-id"]
    assert ID.fullmatch(body["request_id"])
    assert "x-request-id" not in response.headers
    return body["error"]


@pytest.mark.contract("messages.errors.id")
@pytest.mark.parametrize(("path", "stream"), [(MESSAGES, False), (MESSAGES, True), (COUNT, False)])
def test_every_answer_has_its_id(serve, path, stream):
    site = serve()
    first, second = (site.get("POST", path, {**BODY, "stream": stream}) for _ in range(2))
    assert first.status_code == second.status_code == 200
    ids = {first.headers["request-id"], second.headers["request-id"]}
    assert len(ids) == 2
    assert all(map(ID.fullmatch, ids))
    assert "x-request-id" not in first.headers
    assert first.headers["x-ninfer-version"]


@pytest.mark.contract("messages.errors.loading")
@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_while_the_model_loads(serve, path, method):
    response = serve(loading=True).get(method, path, BODY)
    error = check_refusal(response, 503, "api_error")
    assert error == {"type": "api_error", "message": "The model is still loading. Retry shortly."}
    assert response.headers["retry-after"] == "2"


@pytest.mark.contract("messages.errors.categories")
def test_what_the_core_refuses_leaves_in_this_envelope(serve):
    site = serve()
    check_refusal(site.get("POST", "/v1/messages/batches", BODY), 404, "not_found_error")
    wrong = site.get("GET", MESSAGES)
    check_refusal(wrong, 405, "invalid_request_error")
    assert wrong.headers["allow"] == "POST, OPTIONS"
    check_refusal(site.get("POST", COUNT, b"x" * (1 << 20 | 1)), 413, "request_too_large")


@pytest.mark.contract("messages.key")
def test_the_key_comes_in_either_header(serve):
    site = serve(api_key="secret")
    for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
        check_refusal(site.get("POST", MESSAGES, BODY, headers=headers), 401, "authentication_error")
    for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert site.get("POST", MESSAGES, BODY, headers=headers).status_code == 200


@pytest.mark.contract("messages.advisory")
def test_headers_of_the_protocol_change_nothing(serve):
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27,x", "x-app": "cli"}
    assert serve().get("POST", MESSAGES + "?beta=true", BODY, headers=headers).status_code == 200


@pytest.mark.contract("messages.v1")
@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_a_doubled_v1_is_the_same_route(serve, path):
    site = serve()
    assert site.get("POST", "/v1" + path, BODY).status_code == 200
    check_refusal(site.get("POST", "/v1" + path, {}), 400, "invalid_request_error")
    check_refusal(site.get("GET", "/v1" + path), 405, "invalid_request_error")


@pytest.mark.contract("messages.errors.overload", "messages.errors.timeout")
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_server_and_a_slow_queue(serve, stream):
    body = {**BODY, "stream": stream}
    check_refusal(serve(FakeEngine(refusal=Overloaded())).get("POST", MESSAGES, body), 529, "overloaded_error")
    check_refusal(serve(FakeEngine(refusal=QueueTimeout())).get("POST", MESSAGES, body), 504, "timeout_error")


class CountIsFull(FakeEngine):
    async def count(self, job):
        raise Overloaded


def test_a_server_full_of_counts(serve):
    check_refusal(serve(CountIsFull()).get("POST", COUNT, BODY), 529, "overloaded_error")


@pytest.mark.contract("messages.stream.ping")
def test_silence_is_a_comment_and_a_ping_codex_31539(serve, wire, monkeypatch):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.02)

    async def run():
        line = wire(path=MESSAGES, body=msgspec.json.encode({**BODY, "stream": True}))
        await serve(FakeEngine(pause_seconds=0.05)).door(line.scope, line.receive, line.send)
        return [message["body"] for message in line.sent[1:] if message["body"]]

    chunks = asyncio.run(run())
    beat = b': keep-alive\n\nevent: ping\ndata: {"type":"ping"}\n\n'
    assert chunks[0] == beat, "a request that waits is kept alive before its first event"
    assert chunks.count(beat) >= 4
    spoken = b"".join(chunk for chunk in chunks if chunk != beat)
    assert spoken.count(b"event: ") == 7


def test_a_refusal_after_a_heartbeat_is_the_streams_last_event(serve, wire, monkeypatch):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.01)

    class Late(FakeEngine):
        def events(self, job):
            end = super().events(job)[-1]
            self.failure = QueueTimeout()
            return [end]

    async def run():
        line = wire(path=MESSAGES, body=msgspec.json.encode({**BODY, "stream": True}))
        await serve(Late(pause_seconds=0.05)).door(line.scope, line.receive, line.send)
        return line

    line = asyncio.run(run())
    assert line.status == 200
    name, data = line.text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
    assert name == "event: error"
    error = msgspec.json.decode(data.removeprefix("data: "))
    assert error["error"]["type"] == "timeout_error"
    assert ID.fullmatch(error["request_id"])


@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_a_client_that_leaves_cancels_its_message(serve, wire, stream):
    async def run():
        site = serve(FakeEngine(pieces=["x"] * 1000, pause_seconds=0.01))
        line = wire(path=MESSAGES, body=msgspec.json.encode({**BODY, "stream": stream}))
        task = asyncio.ensure_future(site.door(line.scope, line.receive, line.send))
        for _ in range(5000):
            if site.engine.running:
                break
            await asyncio.sleep(0.001)
        line.gone.set()
        await asyncio.wait_for(task, 5)
        return site

    site = asyncio.run(run())
    assert (site.engine.running, len(site.engine.cancelled)) == (0, 1)
