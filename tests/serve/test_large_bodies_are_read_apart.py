"""Bodies of many MiB are read by a process of their own: same values, same refusals, and no harm when it dies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ninfer_core.api import ModelInfo
from ninfer_core.api.http import decode_now
from ninfer_core.errors import ApiError, ContextLengthExceeded, InternalError, InvariantError, QueueTimeout
from ninfer_core.json_scan import Bounds
from ninfer_core.serve import bodies, body_worker
from ninfer_core.serve.bodies import BodyRoom, SpooledBody
from ninfer_core.testing.fakes import INFO
from ninfer_llamacpp.types import CompletionBody
from ninfer_openai.chat import ChatBody

CHAT = msgspec.json.Decoder(ChatBody)
LONG = "a line\n" * 40
BOUNDS = Bounds(values=10_000, containers=1000)
LIMIT = 1 << 20


def model(**changes: Any) -> ModelInfo:
    return dataclasses.replace(INFO, **changes)


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# ---------------------------------------------------------------- what the worker does, in this process


def read(body: bytes, *, text_bytes: int = LIMIT) -> tuple[body_worker.Report, bytes]:
    report, pieces = body_worker.read(body, CHAT, BOUNDS, text_bytes=text_bytes)
    return report, b"".join(pieces)


GOOD = {
    "long-text": chat(said(LONG), said("short"), said(LONG + 'é中🙂\\"\u0001'), temperature=0.5, stop=["x"]),
    "parts": chat({"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "b"}]}),
    "unknown": chat(said("hi"), nobody_reads={"this": LONG, "or": [LONG, {"that": LONG}]}, metadata={"a": LONG}),
    "raw": chat(
        said("hi"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": LONG}}],
        },
        tools=[{"type": "function", "function": {"name": "f", "description": LONG, "parameters": {"x": [1, LONG]}}}],
    ),
    "kwargs": chat(said("hi"), chat_template_kwargs={"note": LONG, LONG: [1, None, True]}),
    "looks-like-a-name": chat(said('"0123456789abcdef01234567:0"'), said(LONG)),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escapes", "utf8"])
def test_the_result_means_what_the_body_meant(name, ascii_only):
    body = json.dumps(GOOD[name], ensure_ascii=ascii_only, indent=1).encode()
    report, result = read(body)
    assert report.refusal is None
    assert report.result_bytes == len(result)
    assert plain(CHAT.decode(result)) == plain(CHAT.decode(body))


def plain(value: Any) -> Any:
    """As builtins; ``Raw`` as what it says."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def test_what_nobody_reads_is_not_in_the_result():
    body = msgspec.json.encode(chat(said("hi"), nobody_reads="x" * 50_000))
    report, result = read(body, text_bytes=4096)
    assert report.result_bytes == len(result) < 4096


BAD = {
    "empty": b" ",
    "cut": b'{"messages":[',
    "duplicate": b'{"messages":[{"role":"user","content":"a","role":"user"}]}',
    "duplicate-skipped": b'{"messages":[{"role":"user"}],"x":{"a":1,"a":"'
    + LONG.encode().replace(b"\n", b" ")
    + b'"}}',
    "infinite": b'{"messages":[{"role":"user"}],"x":1e999}',
    "utf8": b'{"messages":[{"role":"user"}],"x":"\xff"}',
    "surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "type": b'{"messages":[{"role":7}]}',
    "missing": b"{}",
    "range": b'{"messages":[{"role":"user"}],"temperature":9}',
}


@pytest.mark.parametrize("name", BAD)
def test_refusals_are_those_of_a_small_body(name):
    with pytest.raises(ApiError) as caught:
        decode_now(BAD[name], CHAT)
    report, result = read(BAD[name])
    assert result == b""
    assert report.refusal is not None
    assert (report.refusal.code, report.refusal.param) == (caught.value.code, caught.value.param)
    if name != "empty":
        # values are not quoted from a body this large
        assert caught.value.message.startswith(report.refusal.message.rstrip("."))


def test_a_long_string_of_the_wrong_type_is_refused_without_what_stands_for_it():
    report, _ = read(msgspec.json.encode({"messages": "x" * 500}))
    assert report.refusal is not None
    assert report.refusal.message == "'messages' must be an array."


@pytest.mark.parametrize(
    ("text", "least"),
    [("x" * 5000, 5000), ("\n" * 5000, 5000), ("\x01" * 5000, 5000), ("é" * 5000, 10_000), ('\\"' * 2500, 2500)],
    ids=["plain", "escapes", "long-escapes", "utf8", "backslashes"],
)
def test_too_long_a_text_is_measured_without_decoding_it(text, least):
    report, result = read(msgspec.json.encode(chat(said(text))), text_bytes=4000)
    assert result == b""
    assert report.text_bytes is not None
    assert least <= report.text_bytes <= len(text.encode())


# ---------------------------------------------------------------- through a process


async def spooled(room: BodyRoom, body: bytes) -> SpooledBody:
    made = SpooledBody(room)
    await made.add([body])
    return made


def decoded(room: BodyRoom, body: bytes, decoder: msgspec.json.Decoder[Any] = CHAT) -> Any:
    async def run() -> Any:
        large = await spooled(room, body)
        try:
            return await large.decode(decoder)
        finally:
            large.close()

    return asyncio.run(run())


@pytest.fixture
def room() -> BodyRoom:
    return BodyRoom(limit_mib=64, model=lambda: INFO)


def test_a_process_decodes_a_body_like_a_small_one(room):
    body = msgspec.json.encode(GOOD["raw"])
    assert plain(decoded(room, body)) == plain(decode_now(body, CHAT))


def test_a_refusal_comes_back_as_it_was_raised(room):
    with pytest.raises(ApiError) as caught:
        decoded(room, BAD["duplicate"])
    assert (caught.value.status, caught.value.code) == (400, "duplicate_member")
    assert caught.value.message == "'messages[0]' has the member \"role\" twice."


def test_text_that_no_prompt_may_have_is_refused_by_its_size(monkeypatch):
    monkeypatch.setattr(bodies, "TEXT_BYTES", 1000)
    monkeypatch.setattr(bodies, "TOKEN_BYTES", 1)
    body = msgspec.json.encode(chat(said("x" * 5000)))
    served = model(max_context=100, longest_token=10)
    with pytest.raises(ContextLengthExceeded, match="at least 500 tokens") as proven:
        decoded(BodyRoom(limit_mib=1, model=lambda: served), body)
    assert proven.value.fields == {"n_prompt_tokens": 500, "n_ctx": 100}
    unbounded = model(max_context=100, longest_token=None)
    with pytest.raises(ApiError, match="more than 1100 bytes of text") as unproven:
        decoded(BodyRoom(limit_mib=1, model=lambda: unbounded), body)
    assert (unproven.value.code, unproven.value.fields) == ("context_length_exceeded", {"n_ctx": 100})


def test_a_list_of_token_ids_as_long_as_the_context_is_read(monkeypatch):
    monkeypatch.setattr(bodies, "VALUES", 10)
    decoder = msgspec.json.Decoder(CompletionBody)
    room = BodyRoom(limit_mib=1, model=lambda: model(max_context=5000))
    assert decoded(room, msgspec.json.encode({"prompt": [7] * 5000}), decoder).prompt == [7] * 5000
    with pytest.raises(ApiError) as caught:
        decoded(room, msgspec.json.encode({"prompt": [7] * 6000}), decoder)
    assert caught.value.code == "request_too_complex"


@pytest.mark.parametrize("kind", [dict, list[int], CompletionBody | None])
def test_a_type_without_a_name_is_our_mistake(room, kind):
    with pytest.raises(InvariantError, match="class of a module"):
        decoded(room, b"{}", msgspec.json.Decoder(kind))


# ---------------------------------------------------------------- a process that does not end well


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """``stand_in(code)``: the worker runs this code instead; its process ids are written down."""
    pids = tmp_path / "pids"

    def use(code: str) -> None:
        script = tmp_path / "stand_in.py"
        script.write_text(f"import os, time, sys\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n{code}\n")
        real = bodies.subprocess.Popen

        def popen(command, **more):
            return real([sys.executable, str(script)], **more)

        monkeypatch.setattr(bodies.subprocess, "Popen", popen)

    def started() -> list[int]:
        return [int(line) for line in pids.read_text().split()] if pids.exists() else []

    use.started = started
    return use


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    "code", ["os.kill(os.getpid(), 9)", "sys.exit(3)", "raise MemoryError"], ids=["killed", "status-3", "exception"]
)
def test_a_worker_that_dies_fails_its_own_request_alone(room, stand_in, monkeypatch, code):
    with monkeypatch.context():
        stand_in(code)
        with pytest.raises(InternalError):
            decoded(room, b"{}")
        monkeypatch.undo()
    assert decoded(room, msgspec.json.encode(GOOD["parts"])).messages


def test_a_client_that_leaves_ends_the_worker(room, stand_in):
    stand_in("time.sleep(60)")

    async def run() -> None:
        large = await spooled(room, b"{}")
        reading = asyncio.ensure_future(large.decode(CHAT))
        await asyncio.to_thread(until, stand_in.started)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        large.close()

    began = time.monotonic()
    asyncio.run(run())
    room.workers.shutdown(wait=True)
    assert time.monotonic() - began < 30
    assert all(map(ended, stand_in.started()))


def test_a_body_that_is_not_read_in_time_is_a_queue_timeout(stand_in):
    stand_in("time.sleep(60)")
    room = BodyRoom(limit_mib=1, wait_seconds=0.3, model=lambda: INFO)
    with pytest.raises(QueueTimeout):
        decoded(room, b"{}")
    room.workers.shutdown(wait=True)
    assert all(map(ended, stand_in.started()))


def test_bodies_wait_for_their_turn_and_leave_the_line_when_their_client_goes(stand_in, monkeypatch):
    monkeypatch.setattr(bodies, "WORKERS", 1)
    stand_in("time.sleep(60)")
    room = BodyRoom(limit_mib=1, model=lambda: INFO)

    async def run() -> None:
        large = [await spooled(room, b"{}") for _ in range(3)]
        readings = [asyncio.ensure_future(body.decode(CHAT)) for body in large]
        await asyncio.to_thread(until, stand_in.started)
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)
        for body in large:
            body.close()

    asyncio.run(run())
    room.workers.shutdown(wait=True)
    assert len(stand_in.started()) == 1  # the others never had one
    assert all(map(ended, stand_in.started()))


def test_the_worker_lives_within_its_memory():
    pytest.importorskip("resource")
    code = (
        "from ninfer_core.serve import body_worker as w\n"
        "import resource\n"
        "w.MEMORY_BYTES = 1 << 30\n"
        "w._be_modest(0)\n"
        "assert resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 30\n"
        "try:\n    bytes(2 << 30)\nexcept MemoryError:\n    print('refused')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert out.stdout == "refused\n", out.stderr
