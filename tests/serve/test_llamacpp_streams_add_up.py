"""Whatever a model says, in whatever tokens and rounds: a ``/completion`` stream adds up to the aggregate answer."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

DRAFTS: tuple[dict[str, Any], ...] = ({}, {"draft": [0, 2, 1]}, {"draft": [5, 1, 3]})  # right tokens per round
LANES = ("--max-context", "256", "--kv-capacity", "1536", "--max-concurrency", "6", "--max-pending-requests", "32")
SAID = [
    "a",
    "b",
    " ",
    "\n",
    "é",
    "🌍",
    "END",
    "EN",
    "<think>",
    "</think>",
    "<tool_call>",
    "<|image_pad|>",
    '"',
    "\u2028",
]
MOVING = ("timings", "content", "generation_settings", "id_slot")


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """A text cut into tokens anywhere, inside a character too; now and then one that ends inside a character."""
    spelled = "".join(draw(st.lists(st.sampled_from(SAID), min_size=1, max_size=10))).encode()
    spelled = spelled[: len(spelled) - draw(st.sampled_from([0, 0, 0, 1, 2]))] or b"x"
    cuts = draw(st.sets(st.integers(1, max(len(spelled) - 1, 1)), max_size=12))
    edges = [0, *sorted(cut for cut in cuts if cut < len(spelled)), len(spelled)]
    reply: dict[str, Any] = {"pieces_bytes": [list(spelled[a:b]) for a, b in itertools.pairwise(edges)]}
    reply["finish"] = draw(st.sampled_from(["stop", "stop", "never"]))
    rivals = draw(st.sets(st.sampled_from(["a", "b", "z", "\n", "<|im_end|>"]), max_size=2))
    if rivals:
        reply["logits"] = dict.fromkeys(sorted(rivals), 19.0)
    return reply


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "seed": draw(st.integers(0, 9)),
        "temperature": draw(st.sampled_from([-1, 0, 0.7, 1.5])),
        "n_predict": draw(st.sampled_from([0, 1, 2, 40]) | st.integers(1, 24)),
        "stop": draw(st.lists(st.sampled_from(["END", "ND", "é", "b\n", "a b", "", '""']), max_size=3)),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "presence_penalty": draw(st.sampled_from([0, 1.5])),
        "return_tokens": draw(st.booleans()),
        "timings_per_token": draw(st.booleans()),
        "return_progress": draw(st.booleans()),
    }


Case = tuple[dict[str, Any], dict[str, Any]]  # what the model says, what is asked


def check(scripted: Any, cases: list[Case]) -> None:
    """All the cases at the same time, each drafted in every way."""
    told = [
        {**reply, "match": f"c{at}d{i}.", **draft}
        for at, (reply, _) in enumerate(cases)
        for i, draft in enumerate(DRAFTS)
    ]
    with scripted({"replies": told}, *LANES) as server:
        answers = iter(server.runner.run(ask_all(server, [body for _, body in cases])))
        assert server.engine.worker.lanes.pool.available == server.engine.worker.lanes.pool.total
        for _, body in cases:
            made = [(msgspec.json.decode(next(answers)), next(answers)) for _ in DRAFTS]
            for whole, stream in made:
                add_up(body, whole, stream)
            first, *others = [{k: v for k, v in whole.items() if k != "prompt"} for whole, _ in made]
            for other in others:
                moving = ("timings", "id_slot")
                assert {k: v for k, v in other.items() if k not in moving} == {
                    k: v for k, v in first.items() if k not in moving
                }, "drafts show"


async def ask_all(server: Any, bodies: list[dict[str, Any]]) -> list[str]:
    async with server.client() as client:

        async def ask(prompt: str, body: dict[str, Any], stream: bool) -> str:
            sent = msgspec.json.encode({**body, "prompt": prompt, "stream": stream})
            response = await client.post("/completion", content=sent, timeout=30)
            assert response.status_code == 200, response.text
            return response.text

        return await asyncio.gather(
            *(
                ask(f"c{at}d{i}.", body, stream)
                for at, body in enumerate(bodies)
                for i in range(len(DRAFTS))
                for stream in (False, True)
            )
        )


def add_up(body: dict[str, Any], whole: dict[str, Any], stream: str) -> None:
    assert "[DONE]" not in stream
    lines = [line for line in stream.removesuffix("\n\n").split("\n\n") if not line.startswith(":")]  # a slow machine
    *events, last = (msgspec.json.decode(line.removeprefix("data: ")) for line in lines)
    progress = [event for event in events if "prompt_progress" in event]
    chunks = events[len(progress) :]
    assert events[: len(progress)] == progress, "progress comes before text"
    assert not progress or body["return_progress"]
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert last["content"] == ""
    assert {k: v for k, v in last.items() if k not in MOVING} == {k: v for k, v in whole.items() if k not in MOVING}
    counts = [chunk["tokens_predicted"] for chunk in chunks] + [last["tokens_predicted"]]
    assert counts == sorted(counts)
    assert last["tokens_predicted"] <= body["n_predict"]
    assert all(chunk["content"] for chunk in chunks), "an empty chunk"
    assert all((chunk["stop"], chunk["tokens"]) == (False, []) for chunk in events)
    assert all(("timings" in chunk) == body["timings_per_token"] for chunk in events)
    settled = {**last["generation_settings"], "stream": False}
    assert settled == whole["generation_settings"]
    assert (len(last["tokens"]) == last["tokens_predicted"]) if body["return_tokens"] else last["tokens"] == []


COMMON: Any = {
    "deadline": None,
    "phases": set(Phase) - {Phase.explain},
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
several = st.lists(st.tuples(replies(), requests()), min_size=1, max_size=4)


@pytest.mark.contract("completion.stream.splits", "completion.stream")
@pytest.mark.parametrize("threads", ["ik_llama-780-llama.cpp-9867-llama.cpp-9933"])
def test_a_stream_adds_up_to_the_aggregate_however_tokens_and_rounds_are_cut(scripted, threads):
    @settings(max_examples=16, derandomize=True, **COMMON)
    @given(cases=several)
    def ask(cases: list[Case]) -> None:
        check(scripted, cases)

    ask()


@pytest.mark.slow
@settings(max_examples=300, **COMMON)
@given(cases=several)
def test_a_stream_adds_up_to_the_aggregate_in_the_long_run(scripted, cases):
    check(scripted, cases)
