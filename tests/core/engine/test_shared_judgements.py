"""What the judgements of one call begin with is processed once, held, and gone when the last of them has started.

The scripted family's pages and states hold hashes of the tokens consumed: a page, slot or frontier of another prompt
shows up as another score.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engines import Driver, end, events, open_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from test_scoring import NO, YES, job, live, settled, soon, started

from ninfer_core.api import ApiError, Unavailable
from ninfer_core.engine.scoring import Judgement, shared_prefix
from ninfer_core.errors import InternalError
from ninfer_core.text.prompt import PreparedPrompt

contract = pytest.mark.contract
QUERY = "What is this? " * 12  # 168 tokens, with those of the template before it
SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "panda", "text": "y", "logits": {"n": 17.0}},
        {"match": "Paris", "text": "n", "logits": {"y": 12.5}},
        {"match": "long", "text": "word " * 12},
        {"match": "broken", "text": "y", "nan_at": 0},
    ],
    "default": {"text": "y", "logits": {"n": 3.0}},
}
DOCUMENTS = ["panda", "Paris", "no", "panda " * 30, "x" * 90, "Paris", "panda"]


def prepared(ids: Any) -> Judgement:
    prompt = PreparedPrompt(ids=tuple(ids), in_reasoning=False, thinking=False, reasoning=None, tool_texts=())
    return Judgement.of(job("a document"), prompt)


def judge(driver: Driver, prompts: list[str], **how: Any) -> list[Any]:
    """The prompts of one group, submitted as a call does it."""
    encode = driver.engine.format.tokenizer.encode_with_control
    prefix = shared_prefix([prepared(encode(prompt)) for prompt in prompts])
    return [submit(driver, one, prefix=prefix, **how) for one in prompts]


def submit(driver: Driver, prompt: str, **how: Any) -> Any:
    generation = driver.submit(prompt, max_tokens=1, scored=(YES, NO), **how)
    generation._unit.done("consumer")  # nobody waits for it
    return generation


def alone(driver: Driver, prompt: str) -> Any:
    generation = submit(driver, prompt)
    driver.run()
    return end(generation).scores


def step_until(driver: Driver, claim: Any) -> None:
    for _ in range(1000):
        if claim():
            return
        driver.step()
    raise AssertionError("it never came true")


def take_turns(driver: Driver, turns: list[Any]) -> None:
    """Have what waits admitted in this order."""
    waiting = driver.worker.queue._waiting
    requests = {id(request.generation): request for request in waiting}
    waiting.clear()
    waiting.extend(requests[id(generation)] for generation in turns)


# ---------------------------------------------------------------------- what is shared


@given(
    shared=st.integers(0, 300),
    rests=st.lists(st.lists(st.integers(0, 2), max_size=150), min_size=1, max_size=6),
    token=st.integers(0, 1 << 20),
)
@settings(deadline=None)
def test_the_frontier_is_the_last_whole_page_of_what_all_have_in_common(shared, rests, token):
    prompts = [tuple([token] * shared + rest + [7]) for rest in rests]
    found = shared_prefix([prepared(ids) for ids in prompts])
    most = min(map(len, prompts)) - 1
    common = next((at for at in range(most) if len({ids[at] for ids in prompts}) > 1), most)
    expected = common // 64 * 64
    if len(prompts) < 2 or not expected:
        assert found is None
    else:
        assert (found.ids, found.coming) == (prompts[0][:expected], len(prompts))


def test_a_waiting_judgement_is_the_prompt_it_was():
    ids = (0, 1, 255, 65_536, 248_320, 2**31 - 1)
    assert prepared(ids).prompt == PreparedPrompt(
        ids=ids, in_reasoning=False, thinking=False, reasoning=None, tool_texts=()
    )


@contract("rerank.prefix", "rerank.exact")
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("flags", [(), ("--concurrent-prefill",)], ids=["", "concurrent"])
@pytest.mark.parametrize("chunk", ["64", "8192"])
def test_what_judgements_share_is_processed_once(tmp_path, lanes, flags, chunk):
    engine = open_engine(tmp_path, SCRIPT, "--max-concurrency", str(lanes), "--prefill-chunk", chunk, *flags)
    jobs = [job(QUERY + text) for text in DOCUMENTS]
    sizes = [len(engine._prompts.chat(one).ids) for one in jobs]

    async def work() -> Any:
        together = await engine.score(jobs, (YES, NO))
        counters = engine.worker.snapshot.counters
        gauges = engine.worker.snapshot.gauges
        return together, counters, gauges, [(await engine.score([one], (YES, NO)))[0] for one in jobs]

    together, counters, gauges, single = run(live(engine, work))
    shared = 128
    assert [score.logprobs for score in together] == [score.logprobs for score in single]
    assert [score.prompt_tokens for score in together] == sizes
    assert [score.cached_tokens for score in together] == [0, *[shared] * (len(jobs) - 1)]
    assert [score.cached_tokens for score in single] == [0] * len(jobs)
    assert counters.computed_prefill_tokens == sum(sizes) - shared * (len(jobs) - 1)
    assert counters.reused_prompt_tokens == counters.prefix_cache_hit_tokens == shared * (len(jobs) - 1)
    assert (counters.selected_root, counters.selected_shared_prefix) == (1, len(jobs) - 1)
    assert (counters.captures_completed, counters.captures_skipped) == (1, 0)
    assert counters.state_forks == len(jobs) - 1
    assert gauges.last_selected_frontier == shared
    assert (gauges.kv_pages, gauges.state_slots) == (0, 0), "gone when the answer is there"


@pytest.mark.parametrize("thread", ["vllm-55766", "vllm-53912", "vllm-47194"])
def test_prompts_that_part_around_every_page_and_chunk_boundary_are_scored_as_alone(tmp_path, thread):
    """A state restored at another frontier than its pages: these ended in NaN, or in another answer."""
    chunk = {"vllm-55766": "64", "vllm-53912": "128", "vllm-47194": "192"}[thread]
    drafts = {"draft": [2, 0]} if thread == "vllm-47194" else {}
    flags = ("--prefill-chunk", chunk, "--max-concurrency", "2", "--max-pending-requests", "9")
    driver = Driver(open_engine(tmp_path, {**SCRIPT, **drafts}, *flags))
    for shared in (62, 63, 64, 65, 127, 128, 129, 191, 192, 193):
        prompts = ["." * shared + rest for rest in ("panda", "Paris", "x" * 70)]
        got = judge(driver, prompts)
        driver.run()
        assert [end(one).scores for one in got] == [alone(driver, prompt) for prompt in prompts]
        assert [end(one).cached_tokens for one in got[1:]] == [shared // 64 * 64] * 2
        driver.check_at_rest()


def test_equal_prompts_share_all_but_their_last_tokens(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    for size, shared in ((128, 64), (129, 128), (64, 0), (65, 64)):
        got = judge(driver, ["panda" + "." * (size - 5)] * 3)
        driver.run()
        assert [end(one).cached_tokens for one in got] == [0, shared, shared]
        assert len({end(one).scores for one in got}) == 1


def test_timings_and_slots_tell_what_was_reused(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", "128"))
    first, second = judge(driver, [QUERY + "panda", QUERY + "x" * 300])
    step_until(driver, lambda: any(one.reused_tokens for one in driver.worker.snapshot.running))
    assert driver.engine.slots()[0].cached_tokens == 128
    driver.run()
    for generation, reused in ((first, 0), (second, 128)):
        timings, prompt = end(generation).timings, end(generation).prompt_tokens
        assert (timings.cache_n, timings.prompt_n) == (reused, prompt - reused)
        begun, progress = events(generation)[:2]
        assert (begun.reused_tokens, progress.cache, progress.processed) == (reused, reused, reused)


# ---------------------------------------------------------------------- nothing stays


async def calls_at_once(engine: Any, texts: list[str]) -> Any:
    jobs = [job(QUERY + text) for text in texts]
    return asyncio.ensure_future(engine.score(jobs, (YES, NO)))


@contract("rerank.prefix", "rerank.capacity")
@pytest.mark.parametrize("lanes", ["1", "2"])
def test_a_client_that_leaves_takes_what_its_judgements_share_with_it(tmp_path, lanes):
    engine = started(tmp_path, "--max-concurrency", lanes, prefill_delay_ms=2)

    async def work() -> None:
        judging = await calls_at_once(engine, ["panda"] * 200)
        await soon(lambda: engine.worker.snapshot.counters.selected_shared_prefix > 2)
        assert engine.worker.snapshot.gauges.kv_pages >= 2
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging
        await settled(engine)
        assert engine.worker.snapshot.counters.requests < 200

    run(live(engine, work))


@contract("rerank.prefix")
def test_a_judgement_that_fails_leaves_nothing_held(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--max-concurrency", "2")

    async def work() -> None:
        judging = await calls_at_once(engine, ["panda", "x", "broken", *["panda"] * 50])
        with pytest.raises(InternalError):
            await judging
        await settled(engine)
        scores = await (await calls_at_once(engine, ["panda", "x", "Paris"]))
        assert [score.cached_tokens for score in scores] == [0, 128, 128]

    run(live(engine, work))


@contract("rerank.prefix")
@pytest.mark.parametrize("when", ["submitted", "answered"])
def test_what_is_held_goes_although_nobody_runs_whose_end_would_let_go_of_it(tmp_path, monkeypatch, when):
    """The engine has nothing to do and sleeps when the call fails."""
    engine = open_engine(tmp_path, SCRIPT)
    entered = []

    async def failing() -> None:
        await soon(lambda: engine.worker.snapshot.counters.requests == 3)
        await asyncio.sleep(0.05)  # until it sleeps
        raise ApiError("gone", "Gone.")

    def enter(*arguments: Any) -> Any:
        entered.append(arguments)
        if len(entered) == 3 and when == "submitted":
            raise ApiError("gone", "Gone.")
        generation = engine._enter_judgement(*arguments)
        if len(entered) == 3:
            monkeypatch.setattr(generation, "result", failing)
        return generation

    monkeypatch.setattr(engine, "_judges", replace(engine._judges, enter=enter))

    async def work() -> None:
        judging = await calls_at_once(engine, ["panda", "x", "Paris", "no"])
        with pytest.raises(ApiError, match="Gone"):
            await judging
        await settled(engine)

    run(live(engine, work))
    assert len(entered) == 3


@contract("rerank.prefix")
def test_a_stop_lets_go_of_what_is_held(tmp_path):
    engine = started(tmp_path, prefill_delay_ms=2)

    async def work() -> None:
        engine.start(asyncio.get_running_loop())
        judging = await calls_at_once(engine, ["panda"] * 100)
        await soon(lambda: engine.worker.snapshot.counters.selected_shared_prefix > 1)
        engine.stop()
        with pytest.raises(Unavailable):
            await judging
        assert await asyncio.to_thread(engine.join, 10)
        assert engine.worker.lanes.pool.available == engine.worker.lanes.pool.total
        engine.worker.lanes.check()

    run(work())


def test_what_a_prompt_is_refused_for_costs_no_judgement(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--max-context", "512")
    jobs = [job(QUERY + "panda", f"documents[{at}]") for at in range(30)]
    jobs.append(job("x" * 600, "documents[30]"))

    async def work() -> None:
        with pytest.raises(ApiError) as caught:
            await engine.score(jobs, (YES, NO))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "documents[30]")
        assert engine.worker.snapshot.counters.prefill_units == 0
        assert (engine.rejected, engine.capacity.held) == (1, 0)

    run(live(engine, work))


def test_out_of_memory_lets_go_of_what_is_held_and_others_start_anew(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-pending-requests", "20", "--prefill-chunk", "128"))
    mine = judge(driver, [QUERY + text for text in ("panda", "x" * 300, "Paris")])
    other = judge(driver, ["." * 100 + text for text in ("panda", "x", "Paris")])
    step_until(driver, lambda: driver.worker.snapshot.counters.selected_shared_prefix)
    driver.worker._recover(MemoryError())
    assert not driver.worker.lanes.prefixes
    driver.worker._back_off = 0
    driver.run()
    assert isinstance(end(mine[1]), InternalError)
    assert end(mine[2]).cached_tokens == 0
    assert [end(one).cached_tokens for one in other] == [0, 64, 64]
    driver.check_at_rest()


# ---------------------------------------------------------------------- it gives way


@pytest.mark.parametrize("lease", [(), ("--kv-lease-growth",)], ids=["whole", "lease"])
def test_a_generation_that_needs_every_page_gets_them(tmp_path, lease):
    """Its turn comes between judgements whose beginning is held; there is no page for both."""
    flags = ("--max-context", "512", "--kv-capacity", "512", "--max-concurrency", "2", *lease)
    driver = Driver(open_engine(tmp_path, SCRIPT, *flags, "--max-pending-requests", "20"))
    prompts = [QUERY + text for text in ("panda", "x", "Paris", "panda")]
    mine = judge(driver, prompts)
    whole = driver.submit("long", max_tokens=500)
    take_turns(driver, [*mine[:2], whole, *mine[2:]])
    driver.run()
    assert end(whole).content == "word " * 12
    assert [end(one).scores for one in mine] == [alone(driver, prompt) for prompt in prompts]
    assert [end(one).cached_tokens for one in mine] == [0, 128, 0, 128], "dropped, and held again"
    driver.check_at_rest()


def test_a_state_slot_that_is_held_goes_to_a_lane_that_needs_it(tmp_path):
    """Two calls at once: an idle lane's slot holds the second beginning until the lane is wanted."""
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2", "--max-pending-requests", "20"))
    one = judge(driver, [QUERY + text for text in ("panda", "x", "Paris")])
    two = judge(driver, ["." * 100 + text for text in ("panda", "x", "Paris")])
    turns = [one[0], two[0], one[1], two[1], one[2], two[2]]
    take_turns(driver, turns)
    most = 0
    for _ in range(100):
        driver.step()
        driver.worker.lanes.check()
        most = max(most, len(driver.worker.lanes.prefixes))
    assert most == 2
    assert [end(g).cached_tokens for g in turns] == [0, 0, 128, 64, 128, 64]
    driver.check_at_rest()


def test_without_a_spare_slot_judgements_run_as_they_would_alone(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    states = driver.worker.program.states
    spare = states.take_unset()
    prompts = [QUERY + text for text in ("panda", "x", "Paris")]
    got = judge(driver, prompts)
    driver.run()
    assert [end(one).cached_tokens for one in got] == [0, 0, 0]
    assert [end(one).scores for one in got] == [alone(driver, prompt) for prompt in prompts]
    counters = driver.worker.snapshot.counters
    assert (counters.captures_completed, counters.captures_skipped) == (0, 2), "nobody follows the last one"
    states.give_back(spare)
    driver.check_at_rest()


# ---------------------------------------------------------------------- the log


def test_the_log_has_one_line_for_all_judgements(tmp_path):
    engine = started(tmp_path, "--max-concurrency", "2")

    async def work() -> None:
        await (await calls_at_once(engine, ["panda", "Paris", "nothing", "x"]))
        gone = await calls_at_once(engine, ["panda"] * 100)
        await soon(lambda: engine.worker.snapshot.counters.selected_shared_prefix > 4)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    with capture_logs() as lines:
        run(live(engine, work))
    whole, left = [line for line in lines if line["event"] == "request_done"]
    assert (whole["judgements"], whole["reused_tokens"]) == (4, 3 * 128)
    assert whole["prompt_tokens"] > 4 * len(QUERY)
    assert (left["judgements"], left["finish"]) == (100, "cancelled")
