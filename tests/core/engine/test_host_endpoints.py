"""What needs no model has a capacity and threads of its own: it cannot hold up a generation, nor the reverse."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engines import open_engine, run

from ninfer_core.api import ApiError, ChatJob, Message, Overloaded, Part, RawJob
from ninfer_core.engine import engine as engine_module

SCRIPT = {"default": {"text": "Hello."}}
CHAT = ChatJob(messages=(Message(role="user", content=(Part(text="hi"),)),), thinking=False)


class Gate:
    """Work that waits on its thread until it is let go."""

    def __init__(self) -> None:
        self.waiting = 0
        self.go = threading.Event()

    def __call__(self, *_: object, **__: object) -> list[int]:
        self.waiting += 1
        assert self.go.wait(20)
        return [1]


@pytest.fixture
def engine(tmp_path):
    return open_engine(tmp_path, SCRIPT, "--max-concurrency", "1", "--max-pending-requests", "2")


def calls(engine):
    """Each endpoint's call, by name."""
    return {
        "tokenize": lambda: engine.tokenize("hi"),
        "detokenize": lambda: engine.detokenize([104, 105], counted=True),
        "render": lambda: engine.render(CHAT),
        "count": lambda: engine.count(CHAT),
    }


def closed_gate(engine, monkeypatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(engine.format.tokenizer, "encode_with_control", gate, raising=False)
    return gate


@pytest.mark.parametrize("name", ["tokenize", "detokenize", "render", "count"])
def test_each_is_refused_beyond_the_bound_and_admitted_again(engine, monkeypatch, name):
    gate = closed_gate(engine, monkeypatch)

    async def scenario():
        waiting = [asyncio.ensure_future(engine.tokenize("x")) for _ in range(3)]
        await asyncio.sleep(0)
        assert engine.counting.held == engine.counting.bound == 3
        with pytest.raises(Overloaded):
            await calls(engine)[name]()
        gate.go.set()
        assert await asyncio.gather(*waiting) == [[1]] * 3
        assert engine.counting.held == 0
        monkeypatch.undo()
        await calls(engine)[name]()

    run(scenario())
    assert engine.counting.held == 0


def test_a_generation_is_prepared_while_every_host_thread_is_busy(engine, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(engine._prompts, "render", gate)

    async def scenario():
        engine.start(asyncio.get_running_loop())
        busy = [asyncio.ensure_future(engine.render(CHAT)) for _ in range(3)]
        while gate.waiting < engine_module.THREADS:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        async with await engine.complete(RawJob(prompt=("hi",))) as generation:
            result = await generation.result()
        assert not any(call.done() for call in busy)
        gate.go.set()
        await asyncio.gather(*busy)
        engine.stop()
        return result

    assert run(scenario()).content == "Hello."
    assert engine.join(10)


def test_counting_goes_on_while_generations_hold_all_capacity(engine):
    async def scenario():
        units = [engine.capacity.acquire() for _ in range(engine.capacity.bound)]
        with pytest.raises(Overloaded):
            await engine.complete(RawJob(prompt=("hi",)))
        assert await engine.count(CHAT) > 0
        # a generation's own answer is spelled out whatever else is asked for
        more = [engine.counting.acquire() for _ in range(engine.counting.bound)]
        assert await engine.detokenize([104, 105]) == "hi"
        assert await engine.detokenize([104] * 5000) == "h" * 5000
        for unit in (*units, *more):
            unit.done("engine")
            unit.done("consumer")

    run(scenario())


def test_a_call_that_is_given_up_returns_its_place(engine, monkeypatch):
    gate = closed_gate(engine, monkeypatch)

    async def scenario():
        calls = [asyncio.ensure_future(engine.tokenize("x")) for _ in range(3)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert engine.counting.held == 0
        gate.go.set()

    run(scenario())


def test_refusals_return_their_place(engine):
    async def scenario():
        with pytest.raises(ApiError, match=r"tokens\[1\] is 999999"):
            await engine.detokenize([1, 999_999], counted=True)
        with pytest.raises(ApiError, match="characters") as caught:
            await engine.tokenize("x" * (engine_module.TOKENIZE_CHARACTERS + 1))
        assert caught.value.param == "content"

    run(scenario())
    assert engine.counting.held == 0


def test_a_prompt_far_too_long_is_refused_with_what_was_counted(engine):
    async def scenario():
        engine.start(asyncio.get_running_loop())
        most = engine.limits.max_context
        for tokens, message in ((most + 1, f"has {most + 1} tokens"), (20 * most, "has at least ")):
            with pytest.raises(ApiError, match=message) as caught:
                await engine.complete(RawJob(prompt=("x" * tokens,)))
            assert caught.value.code == "context_length_exceeded"
            assert most < caught.value.fields["n_prompt_tokens"] <= tokens
            assert caught.value.fields["n_ctx"] == most
        engine.stop()

    run(scenario())
    assert engine.join(10)
    assert engine.capacity.held == 0
