"""What a chat says of its own pace, on the real engine: progress of the prompt, live and final timings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

SCRIPT = {
    "replies": [{"match": "drafts", "text": "one two three four", "draft": [3, 0, 1]}],
    "default": {"text": "t</think>\n\nSome words."},
}
CHUNK = 64
PROMPT_FACTS = ("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second")
OUTPUT_FACTS = ("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second")


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    with scripted(SCRIPT, "--prefill-chunk", str(CHUNK), "--max-context", "1024") as running:
        yield running


def asked(server: Any, text: str, **more: Any) -> Any:
    response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
    assert response.status_code == 200, response.text
    if not more.get("stream"):
        return response.json()
    *events, end = response.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in events]


def is_output(chunk: Any) -> bool:
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


@pytest.mark.contract(
    "progress.chunks",
    "progress.timings",
    "progress.whole-ms",
    "progress.first",
    "progress.commits",
    "progress.last",
    "per-token.progress",
)
@pytest.mark.parametrize("per_token", [False, True], ids=["progress-alone", "with-timings"])
def test_progress_goes_from_nothing_to_the_whole_prompt_before_the_first_output(server, per_token):
    events = asked(server, "x" * 300, stream=True, return_progress=True, timings_per_token=per_token)
    at = [n for n, event in enumerate(events) if "prompt_progress" in event]
    progress = [events[n]["prompt_progress"] for n in at]
    assert max(at) < next(n for n, event in enumerate(events) if is_output(event))
    total = progress[0]["total"]
    assert total > 300
    assert [one["processed"] for one in progress] == [*range(0, total, CHUNK), total]
    assert {(one["total"], one["cache"]) for one in progress} == {(total, 0)}
    times = [one["time_ms"] for one in progress]
    assert times == sorted(times)
    assert all(isinstance(time, int) for time in times)
    for n in at:
        assert ("timings" in events[n]) is per_token
        if per_token:
            timings, done = events[n]["timings"], events[n]["prompt_progress"]["processed"]
            assert [timings[fact] for fact in OUTPUT_FACTS] == [0, 0.0, 0.0, 0.0]
            assert (timings["cache_n"], timings["prompt_n"]) == (0, total)
            # the rates are those of what is processed so far
            assert timings["prompt_per_token_ms"] == pytest.approx(timings["prompt_ms"] / done if done else 0.0)


@pytest.mark.contract("per-token.chunks", "per-token.hidden", "per-token.off")
def test_live_timings_are_on_every_visible_chunk_and_count_what_is_committed(server):
    events = asked(server, "hello", stream=True, timings_per_token=True)
    visible = [event for event in events if is_output(event)]
    counts = [event["timings"]["predicted_n"] for event in visible]
    assert counts == sorted(counts)
    # the close tag and the white space behind it are committed and hidden: the next visible chunk knows of them
    assert any(after - before > 1 for before, after in itertools.pairwise(counts))
    without = asked(server, "hello", stream=True)
    assert not any("timings" in event for event in without if is_output(event))


@pytest.mark.contract("timings.always", "timings.last")
@pytest.mark.parametrize("usage", [False, True], ids=["finish", "usage"])
def test_the_last_chunk_has_the_final_timings_and_no_other_does(server, usage):
    events = asked(server, "hello", stream=True, stream_options={"include_usage": usage})
    assert [n for n, event in enumerate(events) if "timings" in event] == [len(events) - 1]
    assert (events[-1]["choices"] == []) is usage


@pytest.mark.contract("timings.counts", "timings.intervals", "timings.finite")
@pytest.mark.parametrize("max_tokens", [0, 1, 2, None])
def test_the_numbers_of_an_answer_agree_and_are_finite(server, max_tokens):
    answer = asked(server, "hello", max_tokens=max_tokens)
    timings, usage = answer["timings"], answer["usage"]
    assert set(timings) == {*PROMPT_FACTS, *OUTPUT_FACTS}
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert all(math.isfinite(value) and value >= 0 for value in timings.values())
    intervals = max(timings["predicted_n"] - 1, 0)
    if intervals == 0:
        assert timings["predicted_per_second"] == timings["predicted_per_token_ms"] == 0
    else:
        assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / intervals)
        assert timings["predicted_per_second"] == pytest.approx(1000 * intervals / timings["predicted_ms"])


@pytest.mark.contract("timings.drafts")
def test_drafting_is_reported_where_there_was_some(server):
    drafted = asked(server, "drafts", enable_thinking=False)["timings"]
    assert drafted["draft_n"] > drafted["draft_n_accepted"] > 0
    assert "draft_n" not in asked(server, "hello")["timings"]
