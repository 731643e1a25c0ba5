"""The engine on the scripted family: what a request gives, alone and beside others."""

import asyncio

import pytest
import structlog
from engines import Driver, end, events, open_engine, run, text

from ninfer_core.api import (
    ApiError,
    ChatJob,
    ContextLengthExceeded,
    Delta,
    Done,
    Message,
    Overloaded,
    Part,
    Progress,
    QueueTimeout,
    RawJob,
    Refusal,
    Result,
    SamplingRequest,
    Started,
    StartupError,
    Unavailable,
)
from ninfer_core.errors import InternalError

LONG = "The quick brown fox jumps over the lazy dog. " * 4
SCRIPT = {
    "replies": [
        {"match": "long", "text": LONG},
        {"match": "forever", "text": "la", "finish": "never"},
        {"match": "nan", "text": "abcdef", "nan_at": 3},
        {"match": "boom", "text": "abcdef", "fail_at": 2},
        {"match": "split", "pieces_bytes": [[0xF0], [0x9F, 0x98], [0x80], [0xC3]]},
        {"match": "even", "text": "x", "finish": "never", "logits": {str(d): 20.0 for d in range(10)}},
    ],
    "default": {"text": "Hello there."},
}


def chat(question, **changes):
    message = Message(role="user", content=(Part(text=question),))
    return ChatJob(**{"messages": (message,), "thinking": False, **changes})


async def answer(engine, job):
    generation = await (engine.complete(job) if isinstance(job, RawJob) else engine.chat(job))
    async with generation:
        return await generation.result()


def test_a_chat_request_plays_its_reply(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)

    async def scenario():
        engine.start(asyncio.get_running_loop())
        result = await answer(engine, chat("hi"))
        engine.stop()
        return result

    result = run(scenario())
    assert (result.content, result.reasoning, result.finish) == ("Hello there.", "", "stop_token")
    assert result.completion_tokens == len("Hello there.") + 1  # the stop token counts
    assert engine.join(10)
    assert engine.worker.lanes.pool.available == engine.worker.lanes.pool.total


def test_thinking_goes_to_its_own_channel(tmp_path):
    engine = open_engine(tmp_path, {"default": {"text": "hm, yes</think>\n\nYes."}})

    async def scenario():
        engine.start(asyncio.get_running_loop())
        result = await answer(engine, chat("hi", thinking=True))
        engine.stop()
        return result

    result = run(scenario())
    assert (result.reasoning, result.content) == ("hm, yes", "Yes.")
    assert 0 < result.reasoning_tokens < result.completion_tokens


def test_events_come_in_order_and_add_up(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", "64"))
    generation = driver.submit("long " + "x" * 200)
    driver.run()
    kinds = [type(event) for event in events(generation)]
    assert kinds[0] is Started
    assert kinds[-1] is Done
    progress = [event for event in events(generation) if isinstance(event, Progress)]
    assert [event.processed for event in progress] == [0, 64, 128, 192, 205]
    result = end(generation)
    assert text(generation) == result.content == LONG
    carried = [event.token_ids for event in events(generation) if isinstance(event, (Delta, Done))]
    assert tuple(token for ids in carried for token in ids) == result.token_ids


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("chunk", ["64", "1024"])
@pytest.mark.parametrize("prompt", [1, 63, 64, 65, 200])
def test_chunks_pages_and_storages_change_nothing(tmp_path, dtype, chunk, prompt):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", chunk, "--kv-dtype", dtype))
    generation = driver.submit("y" * prompt)
    driver.run()
    assert end(generation).content == "Hello there."
    driver.check_at_rest()


@pytest.mark.contract("run.batch")
def test_streams_beside_each_other_equal_their_solo_runs(tmp_path):
    words = ["long", "hi", "even", "long", "even", "a", "b", "even"]
    prompts = [f"{word} {'z' * (37 * i)}" for i, word in enumerate(words)]
    ask = [SamplingRequest(seed=i, temperature=1.0) for i in range(8)]
    solo = []
    for prompt, sampling in zip(prompts, ask, strict=True):
        driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", "64"))
        generation = driver.submit(prompt, sampling=sampling, max_tokens=60)
        driver.run()
        solo.append(end(generation).token_ids)
    driver = Driver(open_engine(tmp_path, SCRIPT, "--prefill-chunk", "64", "--max-concurrency", "8"))
    generations = []
    for prompt, sampling in zip(prompts, ask, strict=True):
        generations.append(driver.submit(prompt, sampling=sampling, max_tokens=60))
        driver.step()  # they join at different boundaries
    driver.run()
    assert [end(generation).token_ids for generation in generations] == solo
    driver.check_at_rest()


@pytest.mark.contract("run.drafts")
@pytest.mark.parametrize("draft", [[0], [1], [3], [0, 2, 5], [62]])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_change_the_rounds_and_never_the_tokens(tmp_path, draft, seed):
    def tokens(script, *flags):
        driver = Driver(open_engine(tmp_path, script, *flags))
        results = []
        for word in ("long", "even"):
            sampling = SamplingRequest(seed=seed, temperature=1.0, presence_penalty=0.3)
            generation = driver.submit(word, sampling=sampling, max_tokens=90)
            driver.run()
            results.append(end(generation))
        driver.check_at_rest()
        return results

    plain = tokens(SCRIPT)
    drafted = tokens({**SCRIPT, "draft": draft})
    copied = tokens(SCRIPT, "--spec", "ngram", "--ngram-min-match", "4")
    assert [r.token_ids for r in plain] == [r.token_ids for r in drafted] == [r.token_ids for r in copied]
    assert drafted[0].timings.draft_n > 0
    assert copied[0].timings.draft_n_accepted > 0  # the text repeats itself
    assert plain[0].timings.draft_n == 0


@pytest.mark.contract("run.cut-round")
def test_a_stop_string_inside_a_speculative_round_ends_the_turn_there(tmp_path):
    driver = Driver(open_engine(tmp_path, {**SCRIPT, "draft": [9]}))
    generation = driver.submit("long", stops=("brown",))
    driver.run()
    result = end(generation)
    assert (result.content, result.finish, result.stop_string) == ("The quick ", "stop_string", "brown")
    assert result.completion_tokens == len("The quick brown")
    driver.check_at_rest()


@pytest.mark.contract("limit.finish")
@pytest.mark.parametrize(("limit", "content"), [(1, "T"), (2, "Th"), (7, "The qui")])
@pytest.mark.parametrize("draft", [[0], [3]])
def test_the_output_limit_is_exact(tmp_path, limit, content, draft):
    driver = Driver(open_engine(tmp_path, {**SCRIPT, "draft": draft}))
    generation = driver.submit("long", max_tokens=limit)
    driver.run()
    assert (end(generation).content, end(generation).finish) == (content, "output_limit")


@pytest.mark.contract("limit.finish")
def test_generation_ends_where_the_context_does(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-context", "100"))
    generation = driver.submit("forever" + "." * 83)
    driver.run()
    result = end(generation)
    assert (result.prompt_tokens, result.completion_tokens, result.finish) == (90, 11, "context_capacity")


def test_a_prompt_as_long_as_the_context_still_gets_one_token(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-context", "100"))
    generation = driver.submit("long" + "." * 96)
    driver.run()
    assert end(generation).completion_tokens == 1


def test_characters_split_over_tokens_arrive_whole(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    generation = driver.submit("split")
    driver.run()
    texts = [event.text for event in events(generation) if isinstance(event, Delta)]
    assert texts == ["\N{GRINNING FACE}", "�"]  # a tail that can never complete


def test_a_row_with_nan_logits_fails_alone(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2"))
    bad, good = driver.submit("nan"), driver.submit("long")
    driver.run()
    assert isinstance(end(bad), InternalError)
    assert text(bad) == "abc"
    assert end(good).content == LONG
    driver.check_at_rest()


def test_a_cancelled_request_frees_its_lane_and_changes_nobody(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2", "--prefill-chunk", "64"))
    for rounds in (0, 1, 2, 5, 9):
        stays, leaves, waits = driver.submit("long"), driver.submit("forever" + "." * 150), driver.submit("hi")
        for _ in range(rounds):
            driver.step()
        leaves.cancel()
        driver.run()
        assert end(stays).content == LONG
        assert end(waits).content == "Hello there."
        assert end(leaves).finish == "cancelled"
        driver.check_at_rest()


@pytest.mark.contract("run.order")
def test_requests_are_admitted_in_order(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2", "--kv-capacity", "8192"))
    generations = [driver.submit(f"hi {i}", max_tokens=limit) for i, limit in enumerate([8000, 8000, 2, 8000, 2])]
    started = []
    for _ in range(300):
        driver.step()
        started += [i for i, g in enumerate(generations) if i not in started and events(g)]
    assert started == [0, 1, 2, 3, 4]  # a small request never overtakes a big one whose pages are missing


@pytest.mark.contract("run.deadline")
def test_a_deadline_ends_only_the_waiting(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    running = driver.submit("forever", patience=0.5, max_tokens=50)
    driver.step()
    waiting = driver.submit("hi", patience=0.5)
    driver.now += 1
    driver.step()
    assert isinstance(end(waiting), QueueTimeout)
    driver.run()
    assert end(running).finish == "output_limit"


def test_a_stop_ends_everything_with_its_error(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    running, waiting = driver.submit("forever"), driver.submit("hi")
    for _ in range(3):
        driver.step()
    driver.engine.stop()
    driver.step()
    assert isinstance(end(running), Unavailable)
    assert isinstance(end(waiting), Unavailable)
    with pytest.raises(Unavailable):
        driver.submit("late")
    driver.check_at_rest()


def test_a_failure_nobody_owns_fails_the_engine(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)

    async def scenario():
        told = asyncio.Event()
        engine.start(asyncio.get_running_loop(), on_failed=told.set)
        with pytest.raises(InternalError):
            await answer(engine, chat("boom"))
        await told.wait()
        with pytest.raises(Unavailable):
            await answer(engine, chat("hi"))

    run(scenario())
    assert engine.failed == "RuntimeError"
    assert engine.join(10)


def test_capacity_is_refused_beyond_lanes_and_queue(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--max-pending-requests", "1")

    async def scenario():
        engine.start(asyncio.get_running_loop())
        held = [await engine.chat(chat("forever", max_tokens=4000)) for _ in range(2)]
        with pytest.raises(Overloaded):
            await engine.chat(chat("hi"))
        for generation in held:
            async with generation:
                pass
        for _ in range(500):
            if not engine.capacity.held:
                break
            await asyncio.sleep(0.01)
        result = await answer(engine, chat("hi"))
        engine.stop()
        return result

    assert run(scenario()).content == "Hello there."
    assert engine.join(10)


def test_a_refused_request_gives_its_capacity_back(tmp_path):
    engine = open_engine(tmp_path, SCRIPT, "--max-context", "128")

    async def scenario():
        engine.start(asyncio.get_running_loop())
        for _ in range(40):
            with pytest.raises(ContextLengthExceeded) as refused:
                await engine.complete(RawJob(prompt=("x" * 129,)))
        with pytest.raises(ApiError):
            await engine.complete(RawJob(prompt=("",)))
        engine.stop()
        return refused.value.fields

    assert run(scenario()) == {"n_prompt_tokens": 129, "n_ctx": 128}
    assert engine.capacity.held == 0
    assert engine.join(10)


def test_no_output_asked_means_no_lane(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)

    async def scenario():
        engine.start(asyncio.get_running_loop())
        result = await answer(engine, chat("hi", max_tokens=0))
        engine.stop()
        return result

    result = run(scenario())
    assert (result.completion_tokens, result.content, result.finish) == (0, "", "output_limit")
    assert result.prompt_tokens > 0


@pytest.mark.parametrize(
    ("flags", "error", "says"),
    [
        (["--kv-capacity", "64", "--max-context", "128"], Refusal, "--kv-capacity 64"),
        (["--max-context", "99999999"], StartupError, "--max-context"),
        (["--kv-dtype", "int9"], StartupError, "did you mean 'int8'"),
        (["--spec", "ngrm"], StartupError, "did you mean 'ngram'"),
        (["--device", "7"], StartupError, "--device"),
        (["--ngram-draft-tokens", "5"], Refusal, "--spec ngram"),
        (["--chat-template", "/nowhere.jinja"], StartupError, "/nowhere.jinja"),
        (["--no-thinking", "--default-reasoning-effort", "high"], Refusal, "--no-thinking"),
        (["--max-context", "64", "--max-concurrency", "2"], Refusal, "pages"),
        (["--prefill-chunk", "100"], StartupError, "multiple of 64"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_in_one_line(tmp_path, flags, error, says):
    with pytest.raises(error) as refused:
        open_engine(tmp_path, SCRIPT, *flags)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(tmp_path):
    driver = Driver(open_engine(tmp_path, SCRIPT))
    drawn = []
    for seed in (1, 1, 2):
        generation = driver.submit("even", sampling=SamplingRequest(seed=seed, temperature=1.0), max_tokens=40)
        driver.run()
        drawn.append(end(generation).token_ids)
    assert drawn[0] == drawn[1] != drawn[2]
    assert isinstance(end(generation), Result)


def test_the_log_names_the_exchange_and_its_protocol(tmp_path):
    engine = open_engine(tmp_path, SCRIPT)

    async def scenario():
        engine.start(asyncio.get_running_loop())
        await answer(engine, chat("hi", request_id="req_7", protocol="openai-chat"))
        engine.stop()

    with structlog.testing.capture_logs() as events_logged:
        run(scenario())
        assert engine.join(10)
    done = next(entry for entry in events_logged if entry["event"] == "request_done")
    assert (done["request_id"], done["protocol"]) == ("req_7", "openai-chat")
