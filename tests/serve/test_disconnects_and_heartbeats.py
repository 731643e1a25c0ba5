"""The client's side of a stream: when it leaves, when it waits, when the engine fails under it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ninfer_core.api import ApiError, HttpResponse, Unavailable
from ninfer_core.errors import QueueTimeout
from ninfer_core.serve import stream as stream_module
from ninfer_core.serve.stream import send_stream
from ninfer_core.testing import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
RAW = {"prompt": "hi"}
ROUTES = [("/v1/chat/completions", CHAT), ("/completion", RAW), ("/v1/completions", RAW)]


async def exchange(site, line, leave_after: float | None = None):
    task = asyncio.ensure_future(site.door(line.scope, line.receive, line.send))
    if leave_after is not None:
        await asyncio.sleep(leave_after)
        line.gone.set()
    await asyncio.wait_for(task, 5)
    return line


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_a_client_that_leaves_cancels_its_generation(serve, wire, path, body, stream):
    async def run():
        site = serve(FakeEngine(pieces=["x"] * 1000, pause_seconds=0.01))
        line = wire(path=path, body=msgspec.json.encode({**body, "stream": stream}))
        task = asyncio.ensure_future(exchange(site, line))
        for _ in range(4000):
            if line.streaming.is_set() if stream else site.engine.running:
                break
            await asyncio.sleep(0.001)
        line.gone.set()
        await task
        return site, line

    site, line = asyncio.run(run())
    assert site.engine.running == 0
    assert len(site.engine.cancelled) == 1
    assert bool(line.sent) is stream  # an aggregate that was cut has nothing to say


@pytest.mark.parametrize("phase", [0.0, 0.001, 0.02])
def test_a_client_that_leaves_at_any_time_leaves_nothing_running(serve, wire, phase):
    async def run():
        site = serve(FakeEngine(pieces=["x"] * 50, pause_seconds=0.001))
        line = wire(path="/v1/chat/completions", body=msgspec.json.encode({**CHAT, "stream": True}))
        await exchange(site, line, leave_after=phase)
        return site

    site = asyncio.run(run())
    assert site.engine.running == 0
    assert len(site.engine.cancelled) == len(site.engine.jobs)


def test_a_client_that_leaves_while_uploading_starts_nothing(serve, wire):
    async def run():
        site = serve()
        line = wire(path="/completion")

        async def receive():
            return {"type": "http.disconnect"}

        await site.door(line.scope, receive, line.send)
        return site, line

    site, line = asyncio.run(run())
    assert (site.engine.jobs, line.sent) == ([], [])


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=["codex-31539", "floway-498", "jcode-976"])
@pytest.mark.contract("http.keep-alive")
def test_silence_is_filled_with_comments_and_they_change_nothing(serve, wire, monkeypatch, path, body):
    async def run(pause):
        line = wire(path=path, body=msgspec.json.encode({**body, "stream": True}))
        site = serve(FakeEngine(pause_seconds=pause))
        await exchange(site, line)
        return [m["body"] for m in line.sent[1:] if m["body"]]

    quick = asyncio.run(run(0))
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.02)
    slow = asyncio.run(run(0.05))
    beat = b": keep-alive\n\n"
    assert beat not in quick
    assert slow[0] == beat, "a request that waits is kept alive before its first event"
    assert slow.count(beat) >= 4
    assert len([chunk for chunk in slow if chunk != beat]) == len(quick)


def test_five_seconds_of_silence_are_the_contract():
    assert stream_module.HEARTBEAT_SECONDS == 5.0


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_refusal_before_the_first_event_is_an_ordinary_error(serve, path, body):
    for engine in (FakeEngine(refusal=QueueTimeout()), FirstEventFails()):
        response = serve(engine).get("POST", path, {**body, "stream": True})
        assert response.status_code == 503
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"]["code"] == "request_queue_timeout"


class FirstEventFails(FakeEngine):
    def events(self, job):
        raise_it = super().events(job)[-1]
        self.failure = QueueTimeout()
        return [raise_it]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_failure_after_the_first_event_is_an_error_event_at_the_end(serve, path, body):
    response = serve(FakeEngine(failure=Unavailable())).get("POST", path, {**body, "stream": True})
    assert response.status_code == 200
    last = response.text.removesuffix("\n\n").split("\n\n")[-1]
    assert last == (
        'data: {"error":{"message":"The server is not available.","type":"service_unavailable",'
        '"code":"service_unavailable"}}'
    )


def drive(chunks, **fields):
    """What ``send_stream`` sends for a stream, without the door."""

    async def run():
        sent = []

        async def send(message):
            sent.append(message)

        def refuse(error: ApiError) -> HttpResponse:
            return HttpResponse(status=error.status, body=error.message.encode())

        await send_stream(HttpResponse(stream=chunks(), **fields), send, refuse)
        return sent

    return asyncio.run(run())


def test_an_error_after_a_heartbeat_alone_is_late(monkeypatch):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.01)

    async def chunks():
        await asyncio.sleep(0.05)
        raise QueueTimeout
        yield b""

    sent = drive(chunks, heartbeat=b"beat", late_error=lambda error: b"late:" + error.code.encode())
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == b"beat"
    assert sent[-2]["body"] == b"late:request_queue_timeout"
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_a_fault_of_ours_in_a_stream_tells_nothing():
    async def chunks():
        yield b"one"
        raise ValueError("secret")

    sent = drive(chunks, late_error=lambda error: error.message.encode())
    assert b"secret" not in b"".join(m.get("body", b"") for m in sent)
    assert sent[-2]["body"] == b"The server failed to complete this request."


def test_a_stream_that_cannot_tell_of_an_error_is_cut():
    async def chunks():
        yield b"one"
        raise QueueTimeout

    with pytest.raises(stream_module._Cut):
        drive(chunks)
