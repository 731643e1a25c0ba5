"""Judgements: exact log probabilities, a lane's worth at a time, within the capacity of the house."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from engines import open_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import ApiError, ChatJob, Message, Overloaded, Part, RawJob
from ninfer_core.engine.capacity import Capacity, Seat
from ninfer_core.engine.scoring import take_turns
from ninfer_core.errors import InternalError

contract = pytest.mark.contract
YES, NO = ord("y"), ord("n")
SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "panda", "text": "y", "logits": {"n": 17.0}},
        {"match": "Paris", "text": "n", "logits": {"y": 12.5}},
        {"match": "nothing", "text": "?"},
        {"match": "broken", "text": "y", "nan_at": 0},
        {"match": "slow", "text": "z" * 40, "finish": "never", "delay_ms": 2},
    ],
    "default": {"text": "y"},
}


def job(text: str, place: str = "documents[0]") -> ChatJob:
    return ChatJob(messages=(Message(role="user", content=(Part(text=text),), place=place),), thinking=False)


def started(folder: Any, *flags: str, prefill_delay_ms: float = 0) -> Any:
    return open_engine(folder, {**SCRIPT, "prefill_delay_ms": prefill_delay_ms}, *flags)


async def live(engine: Any, work: Any) -> Any:
    """``work()`` on a started engine, which is back at rest afterwards."""
    engine.start(asyncio.get_running_loop())
    try:
        return await work()
    finally:
        await settled(engine)
        engine.stop()
        assert await asyncio.to_thread(engine.join, 10)


async def soon(claim: Any) -> None:
    for _ in range(10_000):
        if claim():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


async def settled(engine: Any) -> None:
    await soon(lambda: not engine.capacity.held and engine.worker.idle)
    assert engine.worker.lanes.pool.available == engine.worker.lanes.pool.total
    engine.worker.lanes.pool.check()


def expected(engine: Any, logits: dict[int, float], token: int) -> float:
    """By definition, over the whole vocabulary."""
    rest = engine.format.tokenizer.size - len(logits)
    mass = math.fsum([*(math.exp(value - 20) for value in logits.values()), rest * math.exp(-20)])
    return logits.get(token, 0.0) - 20 - math.log(mass)


@contract("rerank.exact")
@pytest.mark.parametrize(
    "flags", [(), ("--greedy",), ("--temperature", "0.2", "--top-k", "1", "--presence-penalty", "2")]
)
def test_scores_are_the_models_own_whatever_its_sampler_is(tmp_path, flags):
    engine = started(tmp_path, *flags)
    scores = run(live(engine, lambda: engine.score([job("panda"), job("Paris"), job("nothing")], (YES, NO))))
    said = [{YES: 20.0, NO: 17.0}, {NO: 20.0, YES: 12.5}, {ord("?"): 20.0}]
    for score, logits in zip(scores, said, strict=True):
        assert score.logprobs == pytest.approx([expected(engine, logits, token) for token in (YES, NO)], abs=1e-9)
        assert score.prompt_tokens == len(engine._prompts.chat(job("panda")).ids) + (score is scores[2]) * 2


@contract("rerank.exact")
def test_a_judgement_beside_others_and_in_chunks_is_the_same(tmp_path):
    text = "panda " * 40
    alone = started(tmp_path, "--prefill-chunk", "64")
    (one,) = run(live(alone, lambda: alone.score([job(text)], (YES, NO))))
    among = started(tmp_path, "--max-concurrency", "3", "--concurrent-prefill", "--kv-capacity", "8192")
    many = run(live(among, lambda: among.score([job(text), job("Paris"), job(text), job(text)], (YES, NO))))
    assert one == many[0] == many[2] == many[3]


def test_no_jobs_are_no_scores(tmp_path):
    engine = started(tmp_path)
    assert run(live(engine, lambda: engine.score([], (YES,)))) == []


@contract("rerank.capacity")
def test_a_full_house_refuses_a_judgement_and_one_place_is_enough(tmp_path):
    engine = started(tmp_path, "--max-concurrency", "2", "--max-pending-requests", "1")

    async def work() -> None:
        held = [engine.capacity.acquire() for _ in range(3)]
        with pytest.raises(Overloaded):
            await engine.score([job("panda")], (YES, NO))
        assert engine.rejected == 1
        _give_back(held.pop())
        scores = await engine.score([job("panda") for _ in range(7)], (YES, NO))
        assert len(scores) == 7
        assert (engine.capacity.held, engine.capacity.peak) == (2, 3)
        for unit in held:
            _give_back(unit)

    run(live(engine, work))


@contract("rerank.lanes", "rerank.fair")
def test_a_generation_that_comes_later_is_not_held_up_to_the_end(tmp_path):
    """Pitfall class of vllm-18826: what one request brings along never fills the queue in front of the others."""
    flags = ("--max-concurrency", "2", "--max-pending-requests", "8")
    engine = started(tmp_path, *flags, prefill_delay_ms=2)

    async def work() -> None:
        jobs = [job("panda") for _ in range(120)]
        judging = asyncio.ensure_future(engine.score(jobs, (YES, NO)))
        await soon(lambda: engine.worker.counters.prefill_units > 2)
        assert engine.capacity.held == 2, "a lane's worth"
        generation = await engine.complete(RawJob(prompt=("hi",), max_tokens=1))
        async with generation:
            await generation.result()
        assert not judging.done(), "the judgements were all in front of it"
        assert len(await judging) == 120

    run(live(engine, work))


@contract("rerank.capacity")
def test_a_client_that_leaves_takes_its_judgements_with_it(tmp_path):
    engine = started(tmp_path, "--max-concurrency", "2", prefill_delay_ms=2)

    async def work() -> None:
        jobs = [job("panda") for _ in range(200)]
        judging = asyncio.ensure_future(engine.score(jobs, (YES, NO)))
        await soon(lambda: engine.worker.counters.prefill_units > 2)
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging
        await settled(engine)
        (score,) = await engine.score([job("panda")], (YES, NO))
        assert score.logprobs[0] > score.logprobs[1]

    run(live(engine, work))


def test_a_judgement_that_fails_ends_the_others(tmp_path):
    engine = started(tmp_path, "--max-concurrency", "2")

    async def work() -> None:
        with pytest.raises(InternalError):
            await engine.score([job("panda"), job("broken"), *(job("panda") for _ in range(50))], (YES, NO))

    run(live(engine, work))


@contract("rerank.overflow")
@pytest.mark.parametrize("thread", ["ik_llama-2420"])
def test_a_document_beyond_the_context_is_named_with_both_counts(tmp_path, thread):
    engine = started(tmp_path, "--max-context", "256")
    jobs = [job("panda", "documents[0]"), job("x" * 300, "documents[1]")]

    async def work() -> None:
        with pytest.raises(ApiError) as caught:
            await engine.score(jobs, (YES, NO))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "documents[1]")
        assert caught.value.fields["n_ctx"] == 256
        assert caught.value.fields["n_prompt_tokens"] > 300

    run(live(engine, work))


def test_slots_are_the_lanes_and_what_runs_in_them(tmp_path):
    engine = started(tmp_path, "--max-concurrency", "2")

    async def work() -> None:
        assert [slot.is_processing for slot in engine.slots()] == [False, False]
        generation = await engine.complete(RawJob(prompt=("slow",)))
        async with generation:
            await anext(aiter(generation))
            await soon(lambda: engine.slots()[0].is_processing)
            busy, idle = engine.slots()
            assert (busy.index, busy.is_processing, busy.prompt_tokens, busy.cached_tokens) == (0, True, 4, 0)
            assert (idle.index, idle.is_processing, idle.prompt_tokens) == (1, False, 0)
        await settled(engine)
        await soon(lambda: not engine.slots()[0].is_processing)

    run(live(engine, work))


def _give_back(unit: Any) -> None:
    unit.done("engine")
    unit.done("consumer")


@settings(deadline=None, max_examples=150)
@given(
    count=st.integers(1, 20),
    lanes=st.integers(1, 5),
    free=st.integers(1, 6),
    failing=st.none() | st.integers(0, 19),
    naps=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    leaves_after=st.none() | st.integers(0, 12),
)
def test_turns_keep_order_bounds_and_give_every_place_back(count, lanes, free, failing, naps, leaves_after):
    capacity = Capacity(free)
    seen = {"running": 0, "most": 0}

    async def judge(at: int, seat: Seat) -> int:
        seat.take()
        seen["running"] += 1
        seen["most"] = max(seen["most"], seen["running"])
        try:
            for _ in range(naps[at]):
                await asyncio.sleep(0)
            if at == failing:
                raise RuntimeError(str(at))
            return at * 10
        finally:
            seen["running"] -= 1
            seat.done("engine")
            seat.done("consumer")

    async def scenario() -> Any:
        first = Seat(capacity.acquire())
        task = asyncio.ensure_future(take_turns(range(count), judge, first, capacity, lanes))
        for _ in range(leaves_after or 0):
            await asyncio.sleep(0)
        if leaves_after is not None:
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    outcome = asyncio.run(scenario())
    if leaves_after == 0:
        # gone before its first step: who took the place gives it back
        assert capacity.held == 1
        return
    assert capacity.held == 0
    assert seen["running"] == 0
    assert seen["most"] <= min(lanes, free)
    if isinstance(outcome, RuntimeError):
        assert failing is not None and failing < count
    elif not isinstance(outcome, asyncio.CancelledError):
        assert outcome == [at * 10 for at in range(count)]
        assert failing is None or failing >= count


def test_a_seat_is_given_back_when_the_engine_is_through_with_the_last_one():
    capacity = Capacity(1)
    seat = Seat(capacity.acquire())
    for _ in range(3):
        seat.take()
        seat.done("consumer")
        seat.done("engine")
        assert capacity.held == 1, "held between two"
    seat.take()
    seat.leave()
    assert capacity.held == 1, "the engine still works on it"
    seat.done("engine")
    assert capacity.held == 0
    seat.done("engine")
    seat.leave()
    assert capacity.held == 0
