"""A row of a batch is what the request would be alone, whoever joins, ends or leaves beside it, drafts and records or
not."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from engines import Driver, end, open_engine

from ninfer_core.api import Result, SamplingRequest

ROWS = {
    "sglang-32666": 2,
    "llama.cpp-27386": 3,
    "vllm-53488": 8,
}
RIVALS = {"a": 19.5, "b": 19.0, "\n": 18.0}  # real choices, so that a wrong row shows as another token
REPLIES = {f"row {n}.": {"text": "some words to say" * (1 + n % 3), "logits": RIVALS} for n in range(8)}
SCRIPT = {
    "replies": [{"match": match, **reply} for match, reply in REPLIES.items()],
    "draft": [2, 0, 5, 1],
}


def asked(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A prompt, and how it is to be continued."""
    prompt = draw.choice(list(REPLIES)) + "." * draw.randrange(150)
    return prompt, {
        "max_tokens": draw.choice([1, 2, 7, 30]),
        "logprobs": draw.choice([None, 0, 5]),
        "stops": draw.choice([(), ("ds",)]),
        "sampling": SamplingRequest(
            seed=draw.randrange(50),
            temperature=draw.choice([0.0, 0.8, 1.4]),
            presence_penalty=draw.choice([0.0, 1.5]),
            min_p=draw.choice([0.0, 0.3]),
        ),
    }


def essence(result: Result) -> Any:
    return result.token_ids, result.content, result.finish, result.logprobs


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a request gets that has the engine for itself."""
    driver = Driver(open_engine(tmp_path_factory.mktemp("alone"), SCRIPT))

    @functools.cache
    def answer(seed: int) -> Any:
        prompt, how = asked(random.Random(seed))
        generation = driver.submit(prompt, **how)
        driver.run()
        generation._unit.done("consumer")
        return essence(end(generation))

    return answer


@pytest.mark.contract("run.batch")
@pytest.mark.parametrize("thread", ROWS)
def test_rows_that_join_end_and_leave_change_nothing_in_the_others(alone, tmp_path, thread):
    lanes = ROWS[thread]
    flags = ("--max-concurrency", str(lanes), "--prefill-chunk", "64", "--concurrent-prefill")
    driver = Driver(open_engine(tmp_path, SCRIPT, *flags, "--max-pending-requests", "64"))
    draw = random.Random(lanes)
    running: dict[int, Any] = {}
    whole = cancelled = 0
    for seed in range(60):
        prompt, how = asked(random.Random(seed))
        running[seed] = driver.submit(prompt, **how)
        for _ in range(draw.randrange(1, 5)):
            driver.step()
        if draw.random() < 0.3:
            running[draw.choice(list(running))].cancel()
        if len(running) > lanes + 4:
            driver.run()
        for ended in [seed for seed, generation in running.items() if end(generation) is not None]:
            generation = running.pop(ended)
            result = end(generation)
            assert isinstance(result, Result)
            if result.finish == "cancelled":
                cancelled += 1
                assert result.token_ids == alone(ended)[0][: len(result.token_ids)]
            else:
                whole += 1
                assert essence(result) == alone(ended)
            generation._unit.done("consumer")
    driver.run()
    assert whole > 20
    assert cancelled > 3
    driver.check_at_rest()
