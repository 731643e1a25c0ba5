"""An engine whose decode rounds are recorded says what one says that runs them step by step."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import Driver, end
from engines import open_engine as open_anywhere
from stand_in import Late, StandIn, record
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer_core.api import Result, SamplingRequest
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.graphs import Shape, shapes
from ninfer_core.errors import InternalError

RIVALS = {"a": 19.5, "b": 19.0, "\n": 18.0}  # real choices, so that a wrong sampler shows as another token
SCRIPT = {
    "replies": [
        {"match": f"row {n}.", "text": "some words to say" * (1 + n % 3), "logits": RIVALS, "finish": "never"}
        for n in range(8)
    ],
    "draft": [2, 0, 5, 1],
}
LANES = 8
DRAFTS = 6  # one wrong token after the right ones


def open_engine(folder: Path, script: dict[str, Any], *flags: str) -> LocalEngine:
    """On the CPU, where the stand-in of a recording is."""
    return open_anywhere(folder, script, "--device", "cpu", *flags)


def asked(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A prompt, and how it is to be continued."""
    prompt = f"row {draw.randrange(8)}." + "." * draw.randrange(150)
    return prompt, {
        "max_tokens": draw.choice([1, 2, 7, 30, 90]),
        "logprobs": draw.choice([None, 0, 5]),
        "stops": draw.choice([(), (), ("ds",)]),
        "sampling": SamplingRequest(
            seed=draw.randrange(-5, 50),
            temperature=draw.choice([0.0, 0.8, 1.4]),
            top_p=draw.choice([None, 0.9]),
            top_k=draw.choice([None, 3]),
            presence_penalty=draw.choice([0.0, 1.5]),
            frequency_penalty=draw.choice([0.0, 0.25]),
            min_p=draw.choice([0.0, 0.3]),
        ),
    }


def essence(result: Any) -> tuple[Any, list[float]]:
    """What must be equal, and what may differ by rounding."""
    assert isinstance(result, Result)
    listed = [(one.token_id, [token for token, _ in one.top]) for one in result.logprobs]
    values = [value for one in result.logprobs for value in (one.logprob, *(value for _, value in one.top))]
    return (result.token_ids, result.content, result.finish, listed), values


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a request gets step by step, the engine for itself."""
    driver = Driver(open_engine(tmp_path_factory.mktemp("alone"), SCRIPT))

    @functools.cache
    def answer(seed: int) -> Any:
        prompt, how = asked(random.Random(seed))
        generation = driver.submit(prompt, **how)
        driver.run()
        generation._unit.done("consumer")
        return essence(end(generation))

    return answer


WIDE = [Shape(rows=rows, width=DRAFTS + 1) for rows in range(1, LANES + 1)]
SOME = [Shape(rows=1, width=1), Shape(rows=2, width=4), Shape(rows=3, width=7)]
RECORDED = {  # whether there are drafts, and what is recorded; without drafts rounds are sent ahead
    "sglang-32666": (True, shapes(LANES, DRAFTS)),
    "vllm-53488-wide": (True, WIDE),
    "some-sizes-missing": (True, SOME),
    "vllm-53488-ahead": (False, shapes(LANES, 0)),
    "llama.cpp-27386-ahead-some-sizes-missing": (False, [Shape(rows=rows, width=1) for rows in (1, 2, 4, 7)]),
}


@pytest.mark.parametrize("device", [StandIn, Late])
@pytest.mark.parametrize(("drafting", "recorded"), RECORDED.values(), ids=RECORDED)
def test_rows_that_join_end_and_leave_are_what_each_would_be_alone(tmp_path, alone, drafting, recorded, device):
    script = SCRIPT if drafting else {"replies": SCRIPT["replies"]}
    engine = open_engine(tmp_path, script, "--max-concurrency", str(LANES), "--kv-capacity", "16384")
    graphs = record(engine, recorded, device)
    driver, draw = Driver(engine), random.Random(len(recorded))
    running: list[tuple[int, Any]] = []
    done = []
    for step in range(260):
        if step < 200 and len(running) < LANES and draw.random() < 0.4:
            seed = draw.randrange(40)
            prompt, how = asked(random.Random(seed))
            running.append((seed, driver.submit(prompt, **how)))
        driver.step()
        for seed, generation in list(running):
            if draw.random() < 0.01:
                generation.cancel()
            if end(generation) is not None:
                running.remove((seed, generation))
                generation._unit.done("consumer")
                done.append((seed, generation))
    driver.run()
    for seed, generation in [*done, *running]:
        result = end(generation)
        whole = alone(seed)
        if isinstance(result, Result) and result.finish == "cancelled":
            assert result.token_ids == whole[0][0][: len(result.token_ids)]
        else:
            said, values = essence(result)
            assert said == whole[0]
            assert values == pytest.approx(whole[1], abs=1e-5)
    assert len(done) > 20 and len(graphs.replayed) > 2
    driver.check_at_rest()


THOUGHTS = {
    "replies": [
        {"match": "hm", "text": "so so so so so so so so</think>\n\nDone and done.", "logits": {"d": 19.5, "s": 19.0}},
    ]
}
PENALIZED = SamplingRequest(seed=3, temperature=1.2, presence_penalty=0.5, frequency_penalty=0.3)


@pytest.mark.parametrize("draft", [None, [0, 3]])
@pytest.mark.parametrize("budget", [None, 4, 9])
def test_penalties_count_tokens_that_were_inserted(tmp_path, budget, draft):
    """A forced end of the reasoning is longer than what a round brings along."""
    said = []
    for is_recorded in (False, True):
        engine = open_engine(tmp_path, {**THOUGHTS, "draft": draft} if draft else THOUGHTS)
        if is_recorded:
            record(engine, [Shape(rows=1, width=1), Shape(rows=1, width=4)])
        driver = Driver(engine)
        for _ in range(2):  # the second in the lane of the first
            generation = driver.submit("hm", max_tokens=60, sampling=PENALIZED, thinking=True, budget_tokens=budget)
            driver.run()
            said.append((end(generation).reasoning, end(generation).content))
    assert len(said) == 4 and len(set(said)) == 1


def test_a_round_that_fails_leaves_nothing_to_the_next(tmp_path, alone):
    """vllm-53488: what was on its way up when a round failed."""
    engine = open_engine(tmp_path, SCRIPT)
    record(engine, shapes(1, DRAFTS))
    driver, model = Driver(engine), engine.worker.program.model
    for seed in range(12):
        prompt, how = asked(random.Random(seed))
        failed = driver.submit(prompt, **how)
        for _ in range(4):
            driver.step()
        forward, waited = model.forward, []

        def broken(*_: Any, waited: list[bool] = waited) -> Any:
            waited.append(True)
            raise MemoryError

        model.forward = broken
        driver.run()
        model.forward = forward
        assert isinstance(end(failed), InternalError) == bool(waited)
        failed._unit.done("consumer")
        generation = driver.submit(prompt, **how)
        driver.run()
        assert essence(end(generation))[0] == alone(seed)[0]
        generation._unit.done("consumer")


class Counted(TorchDispatchMode):
    """Every operation that is not part of a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.is_replaying = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_replaying:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_a_round_is_its_recording_and_nothing_else(tmp_path, penalty):
    """One upload and one download: no operation beside them while the rows stay the same."""
    engine = open_engine(tmp_path, {"replies": SCRIPT["replies"]}, "--max-concurrency", "2", "--kv-capacity", "16384")
    graphs = record(engine, shapes(2, 0))
    driver, seen = Driver(engine), Counted()
    for seed in range(2):
        sampling = SamplingRequest(seed=seed, temperature=1.0, presence_penalty=penalty)
        driver.submit("row 1.", max_tokens=500, sampling=sampling, logprobs=seed or None)
    for _ in range(8):
        driver.step()
    (recorded,) = [one for one in graphs._recorded[2] if one.shape.width == 1]
    for graph in (recorded.forward, recorded.fold):

        def replay(run: Any = graph.run) -> None:
            seen.is_replaying = True
            run()
            seen.is_replaying = False

        graph.run = replay
    pages = [lane.space.pages.copy() for lane in engine.worker.lanes.active]
    before = graphs.replayed[recorded.shape]
    with seen:
        for _ in range(20):
            driver.step()
    assert graphs.replayed[recorded.shape] == before + 20
    assert [lane.space.pages for lane in engine.worker.lanes.active] == pages
    assert seen.names == ["copy_.default"] * 2 * 20


def test_a_row_that_joins_is_not_left_behind_by_rounds_sent_ahead(tmp_path):
    engine = open_engine(tmp_path, {"replies": SCRIPT["replies"]}, "--max-concurrency", "4", "--kv-capacity", "32768")
    record(engine, shapes(4, 0))
    driver = Driver(engine)
    for seed in range(4):
        driver.submit("row 1.", max_tokens=500, sampling=SamplingRequest(seed=seed))
        for _ in range(6):
            driver.step()
    lanes = engine.worker.lanes.active
    before = [len(lane.ledger) for lane in lanes]
    for _ in range(30):
        driver.step()
    assert [len(lane.ledger) - count for lane, count in zip(lanes, before, strict=True)] == [30] * 4


@pytest.mark.contract("post.switch")
def test_a_sampler_that_changes_holds_from_the_next_token_on(tmp_path):
    """What was sent ahead was drawn by the old one."""
    said = []
    for is_recorded in (False, True):
        engine = open_engine(
            tmp_path, {"replies": SCRIPT["replies"]}, "--max-concurrency", "8", "--kv-capacity", "65536"
        )
        if is_recorded:
            record(engine, shapes(8, 0))
        driver = Driver(engine)
        asked = [driver.submit("row 2.", max_tokens=60, sampling=SamplingRequest(seed=n % 4)) for n in range(8)]
        while not all(map(end, asked)):
            driver.step()
            for lane in engine.worker.lanes.active[:4]:
                if len(lane.session.token_ids) == 20:
                    lane.params = replace(lane.params, temperature=0.0)
        said.append([end(generation).token_ids for generation in asked])
    assert said[0] == said[1]
    for changed, plain in zip(said[0][:4], said[0][4:], strict=True):
        assert changed[:20] == plain[:20] and changed[20:] != plain[20:]
    assert any(changed[20] != plain[20] for changed, plain in zip(said[0][:4], said[0][4:], strict=True))


def test_the_device_has_its_next_round_before_the_host_waits_for_one(tmp_path):
    engine = open_engine(tmp_path, {"replies": SCRIPT["replies"]}, "--max-concurrency", "2", "--kv-capacity", "16384")
    graphs = record(engine, shapes(2, 0), Late)
    driver, under_way = Driver(engine), []
    for seed in range(2):
        driver.submit("row 1.", max_tokens=100, sampling=SamplingRequest(seed=seed))
    while len(engine.worker.lanes.decoding) < 2:
        driver.step()
    wait = graphs.wait

    def counted(sent: Any) -> None:
        under_way.append(len(graphs._under_way))
        wait(sent)

    graphs.wait = counted  # type: ignore[method-assign]
    for _ in range(20):
        driver.step()
    assert under_way == [2] * 20


def test_a_row_whose_logits_are_not_finite_fails_alone_although_its_next_round_was_sent(tmp_path, alone):
    replies = [{"match": "bad", "text": "some words to say", "nan_at": 5, "finish": "never"}, *SCRIPT["replies"]]
    engine = open_engine(tmp_path, {"replies": replies}, "--max-concurrency", "2", "--kv-capacity", "16384")
    record(engine, shapes(2, 0), Late)
    driver = Driver(engine)
    prompt, how = asked(random.Random(6))
    sound, bad = driver.submit(prompt, **how), driver.submit("bad", max_tokens=40)
    driver.run()
    assert isinstance(end(bad), InternalError)
    assert essence(end(sound))[0] == alone(6)[0]
    assert len(end(sound).token_ids) > 5


def test_rounds_are_sent_ahead_while_nothing_waits_for_its_prompt(tmp_path):
    engine = open_engine(tmp_path, {"replies": SCRIPT["replies"]}, "--max-concurrency", "2", "--prefill-chunk", "64")
    graphs = record(engine, shapes(2, 0))
    driver, program = Driver(engine), engine.worker.program
    first = driver.submit("row 1.", max_tokens=40)
    while not engine.worker.lanes.decoding:
        driver.step()
    driver.step()
    assert program._flight is not None
    driver.submit("row 2." + "." * 300, max_tokens=40)
    driver.step()
    assert engine.worker.lanes.staged
    while engine.worker.lanes.staged:
        driver.step()
        assert program._flight is None or not engine.worker.lanes.staged
    driver.run()
    # the last token of a request that reaches its limit is no surprise: nothing was sent off in vain
    rounds = engine.worker.counters.decode_rounds
    assert sum(graphs.replayed.values()) == rounds
    assert len(end(first).token_ids) == 40
