"""Responses on the wire: heartbeats, clients that leave, failures after a heartbeat, doubled paths, methods."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ninfer_core.errors import ApiError, QueueTimeout
from ninfer_core.serve import stream as stream_module
from ninfer_core.testing import FakeEngine

contract = pytest.mark.contract
PATH = "/v1/responses"
BODY = {"model": "fake", "input": "hi", "stream": True}


async def exchange(site: Any, line: Any, leave_after: float | None = None) -> Any:
    task = asyncio.ensure_future(site.door(line.scope, line.receive, line.send))
    if leave_after is not None:
        await asyncio.sleep(leave_after)
        line.gone.set()
    await asyncio.wait_for(task, 5)
    return line


def chunks(line: Any) -> list[bytes]:
    return [message["body"] for message in line.sent[1:] if message["body"]]


def events(said: list[bytes]) -> list[dict[str, Any]]:
    frames = b"".join(said).decode().removesuffix("\n\n").split("\n\n")
    return [msgspec.json.decode(frame.partition("data: ")[2]) for frame in frames]


@contract("responses.stream.heartbeat", "http.keep-alive")
@pytest.mark.parametrize("thread", [pytest.param(0, id="codex-31539"), pytest.param(0, id="Menci/Floway-498")])
def test_silence_is_filled_with_comments_and_they_change_nothing(serve, wire, monkeypatch, thread):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.02)

    async def run(pause: float) -> tuple[list[bytes], Any]:
        site = serve(FakeEngine(pause_seconds=pause))
        line = await exchange(site, wire(path=PATH, body=msgspec.json.encode(BODY)))
        told = chunks(line)
        stored = events([chunk for chunk in told if not chunk.startswith(b":")])[-1]["response"]
        assert (await site.ask("GET", f"{PATH}/{stored['id']}")).json() == stored
        return told, stored

    slow, stored = asyncio.run(run(0.07))
    quick, same = asyncio.run(run(0))
    assert {chunk for chunk in slow if chunk.startswith(b":")} == {b": keep-alive\n\n"}
    assert not [chunk for chunk in quick if chunk.startswith(b":")]
    told = [[event["type"] for event in events([c for c in said if not c.startswith(b":")])] for said in (slow, quick)]
    assert told[0] == told[1]
    assert stored["output"][0]["content"] == same["output"][0]["content"]
    assert stored["usage"] == same["usage"]


@contract("responses.stream.failed")
def test_a_failure_after_a_heartbeat_alone_is_a_whole_stream(serve, wire, monkeypatch):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.01)
    engine = FakeEngine(failure=QueueTimeout(), pause_seconds=0.05)
    engine.events = lambda job: FakeEngine.events(engine, job)[-1:]  # type: ignore[method-assign]
    line = asyncio.run(exchange(serve(engine), wire(path=PATH, body=msgspec.json.encode(BODY))))
    told = [chunk for chunk in chunks(line) if not chunk.startswith(b":")]
    assert line.status == 200
    assert [event["type"] for event in events(told)] == ["response.created", "response.in_progress", "response.failed"]
    assert events(told)[-1]["response"]["error"]["code"] == "request_queue_timeout"


def test_a_queue_timeout_before_anything_was_sent_is_an_ordinary_answer(serve, wire):
    engine = FakeEngine(failure=QueueTimeout())
    engine.events = lambda job: FakeEngine.events(engine, job)[-1:]  # type: ignore[method-assign]
    line = asyncio.run(exchange(serve(engine), wire(path=PATH, body=msgspec.json.encode(BODY))))
    assert line.status == 503
    assert msgspec.json.decode(line.text)["error"]["code"] == "request_queue_timeout"


@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_what_is_wrong_with_the_conversation_is_placed_in_this_endpoints_field(serve, wire, stream):
    engine = FakeEngine(
        refusal=ApiError("invalid_prompt", "The chat template refuses these messages: no.", param="messages")
    )
    line = asyncio.run(exchange(serve(engine), wire(path=PATH, body=msgspec.json.encode(BODY | {"stream": stream}))))
    assert line.status == 400
    assert msgspec.json.decode(line.text)["error"]["param"] == "input"


@contract("responses.store.terminal")
@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_a_client_that_leaves_cancels_its_response_and_nothing_is_stored(serve, wire, stream):
    async def run() -> Any:
        site = serve(FakeEngine(pieces=["x"] * 1000, pause_seconds=0.01))
        await exchange(site, wire(path=PATH, body=msgspec.json.encode({**BODY, "stream": stream})), leave_after=0.05)
        request_id = site.engine.jobs[0].request_id
        found = await site.ask("GET", f"{PATH}/resp_{request_id.removeprefix('req_')}")
        return site, found

    site, found = asyncio.run(run())
    assert (site.engine.running, len(site.engine.cancelled)) == (0, 1)
    assert found.status_code == 404


@contract("responses.store.lifetime")
def test_a_restarted_server_knows_nothing(serve):
    first = serve()
    made = first.get("POST", PATH, {**BODY, "stream": False}).json()
    assert first.get("GET", f"{PATH}/{made['id']}").status_code == 200
    again = serve().get("GET", f"{PATH}/{made['id']}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "response_not_found")


@contract("http.double-v1", "http.request-id", "responses.delete", "responses.compact")
def test_every_route_answers_under_a_doubled_prefix_with_an_id(serve):
    site = serve()
    made = site.get("POST", f"/v1{PATH}", {**BODY, "stream": False})
    assert made.headers["x-request-id"].removeprefix("req_") in made.json()["id"]
    one = f"/v1{PATH}/{made.json()['id']}"
    assert site.get("HEAD", one).status_code == 200
    assert site.get("GET", f"{one}/input_items?limit=1&order=asc").json()["data"][0]["role"] == "user"
    assert site.get("DELETE", one).json()["object"] == "response.deleted"
    assert site.get("POST", f"/v1{PATH}/compact", b"nonsense").json()["error"]["code"] == "compaction_not_supported"
    assert site.get("POST", f"{one}/cancel").json()["error"]["code"] == "background_not_supported"
    for method, path in (("GET", PATH), ("PUT", one), ("GET", f"{PATH}/input_tokens"), ("POST", one)):
        assert site.get(method, path).status_code == 405, (method, path)
    listed = site.get("GET", "/v1").text
    assert PATH in listed and f"{PATH}/input_tokens" in listed


@contract("responses.get.refused")
def test_query_strings_are_read_as_the_client_writes_them(serve):
    site = serve()
    id = site.get("POST", PATH, {**BODY, "stream": False}).json()["id"]
    for query in ("include[]=reasoning.encrypted_content", "include=x", "stream=true", "starting_after=1"):
        answer = site.get("GET", f"{PATH}/{id}?{query}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), query
