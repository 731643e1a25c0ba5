"""Faults of other servers under load, each named after the thread that tells of it: queues without a bound, waiting
without an end, one request's abort that takes others with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from held_request import FLAGS, VICTIM, Held
from held_request import SCRIPT as LONG_ANSWERS
from live_server import Hold, Live, eventually, read_all

from ninfer_core.api import ChatJob, Message, Part
from ninfer_core.errors import Overloaded

SCRIPT: dict[str, Any] = {
    "replies": [{"match": "forever", "text": "f", "finish": "never", "delay_ms": 2}],
    "default": {"text": "Hello."},
}
FOREVER = {"prompt": "forever", "n_predict": 1000, "stream": True}
SHORT = {"prompt": "short"}


@pytest.mark.contract("run.staged")
@pytest.mark.parametrize("stopped", ["streaming", "prefilling"])
@pytest.mark.parametrize("thread", ["llama.cpp-27604"])
def test_an_abort_beside_a_long_prefill_stops_nobody(tmp_path: Path, thread: str, stopped: str) -> None:
    """Two lanes: A streams, B has a prompt of 40,000 tokens, one of them is killed; C is answered, SIGTERM obeyed."""
    script = {**SCRIPT, "prefill_delay_ms": 20}
    flags = ("--max-concurrency", "2", "--max-context", "45056", "--kv-capacity", "90112", "--prefill-chunk", "256")
    live = Live(script, tmp_path, *flags, "--no-thinking")
    worker = live.engine.worker
    streaming = live.connect("/completion", {**FOREVER, "n_predict": 4000})
    assert streaming.recv(1 << 16).startswith(b"HTTP/1.1 200")
    prefilling = live.connect("/completion", {"prompt": "p" * 40_000, "stream": True})
    eventually(lambda: any(lane.frontier > 512 for lane in worker.lanes.staged), "B prefills")
    victim, other = (streaming, prefilling) if stopped == "streaming" else (prefilling, streaming)
    victim.close()
    eventually(lambda: len(worker.lanes.active) == 1, "the lane is free")
    if stopped == "prefilling":
        assert b"Hello." in live.answer("/completion", SHORT)
    else:
        # B's prefill holds admission back; C waits for it and is answered then
        later = live.connect("/completion", SHORT)
        eventually(lambda: len(worker.queue) == 1, "C waits")
        assert worker.lanes.staged
        live.sigterm()
        assert b'"code":"service_unavailable"' in read_all(later)
    assert live.stop() == 0
    assert b'"code":"service_unavailable"' in read_all(other)
    live.assert_at_rest()


@pytest.mark.contract("run.capacity", "run.overload")
@pytest.mark.parametrize("thread", ["vllm-18826"])
def test_forty_requests_find_seventeen_places(scripted: Any, thread: str) -> None:
    async def ask_all(server: Any) -> list[Any]:
        async with server.client() as client:
            body = msgspec.json.encode({"messages": [{"role": "user", "content": "hi"}]})
            asked = [client.post("/v1/chat/completions", content=body, timeout=30) for _ in range(40)]
            return await asyncio.gather(*asked)

    with scripted({**SCRIPT, "delay_ms": 1}, "--max-pending-requests", "16", "--no-thinking") as server:
        answers = server.runner.run(ask_all(server))
        assert Counter(answer.status_code for answer in answers) == {200: 17, 429: 23}
        refused = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 429}
        assert refused == {"server_overloaded"}
        assert server.engine.capacity.held == 0
        assert server.engine.capacity.peak == 17
        assert server.engine.rejected == 23


@pytest.mark.contract("run.deadline")
@pytest.mark.parametrize(
    "waits_for", [pytest.param("lane", id="vllm-2901-lane"), pytest.param("preparation", id="vllm-16391-preparation")]
)
@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
def test_waiting_ends_at_the_deadline_whatever_is_waited_for(tmp_path, monkeypatch, waits_for, stream):
    live = Live(SCRIPT, tmp_path, "--pending-timeout-ms", "200", "--max-context", "1024", "--no-thinking")
    hold = Hold()
    before = None
    if waits_for == "lane":
        before = live.connect("/completion", FOREVER)
        eventually(lambda: live.engine.worker.lanes.active, "the lane is taken")
    else:
        raw = live.engine._prompts.raw

        def stalled(job: Any) -> Any:
            hold()
            return raw(job)

        monkeypatch.setattr(live.engine._prompts, "raw", stalled)
    with live.connect("/completion", {**SHORT, "stream": stream}) as sock:
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"request_queue_timeout"' in answer
    hold.go.set()
    if before is not None:
        assert live.engine.worker.counters.waiting_expired == 1
        before.close()
    live.assert_at_rest()
    assert live.stop() == 0


@pytest.mark.contract("run.counting")
@pytest.mark.parametrize("thread", ["vllm-41250"])
def test_counting_tokens_has_a_bound_of_its_own(tmp_path: Path, monkeypatch: Any, thread: str) -> None:
    """As large as that of generation, refused beyond it in the same way, and neither takes from the other."""
    live = Live(SCRIPT, tmp_path, "--max-pending-requests", "3", "--no-thinking")
    engine, hold = live.engine, Hold()
    chat = engine._prompts.chat

    def stalled(job: Any) -> Any:
        hold()
        return chat(job)

    monkeypatch.setattr(engine._prompts, "chat", stalled)
    job = ChatJob(messages=(Message(role="user", content=(Part(text="hi"),)),))

    def count() -> Any:
        return asyncio.run_coroutine_threadsafe(engine.count(job), live._loop)

    under_way = [count() for _ in range(4)]
    hold.wait_until_reached()
    assert engine.counting.bound == engine.capacity.bound == 4
    with pytest.raises(Overloaded):
        count().result(10)
    assert engine.capacity.held == 0
    hold.go.set()
    assert len({one.result(10) for one in under_way}) == 1
    eventually(lambda: engine.counting.held == 0, "all places returned")
    assert b"Hello." in live.answer("/completion", SHORT)
    assert live.stop() == 0


@pytest.mark.contract("load.admitted", "run.capacity")
def test_a_place_is_held_from_preparation_to_the_last_byte(tmp_path, monkeypatch):
    """The bound counts a request that is still being prepared, and one whose answer nobody has taken yet."""
    flags = [flag if flag != "4" else "1" for flag in FLAGS]  # one lane, one that waits
    live = Live(LONG_ANSWERS, tmp_path, *flags, send_bytes=4096)
    unread = live.connect("/completion", VICTIM, receive_bytes=2048)
    eventually(lambda: live.engine.worker.snapshot.counters.requests == 1, "generated to its end")
    with monkeypatch.context() as patch:
        held = Held(live, "preparing", patch)
        refused = live.answer("/completion", SHORT)
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b'"code":"server_overloaded"' in refused
        held.release()
        assert read_all(held.victim).endswith(b"0\r\n\r\n")
    assert b'"content":"abc"' in live.answer("/completion", SHORT)
    assert read_all(unread).endswith(b"0\r\n\r\n")
    live.assert_at_rest()
    assert live.stop() == 0
