"""Whatever a model says, in whatever tokens, rounds and batches: a chat stream adds up to the aggregate answer."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"
DRAFTS: tuple[dict[str, Any], ...] = ({}, {"draft": [0, 2, 1]}, {"draft": [5, 1, 3]})  # right tokens per round
LANES = ("--max-context", "192", "--kv-capacity", "1152", "--max-concurrency", "6")

segments = st.sampled_from(
    ["a", "b", " ", "\n", "é", "🌍", "END", "EN", "</think>", "</think>\n\n", "</thi", "<think>", '"', "<|image_pad|>"]
)
others = st.sampled_from(["a", "b", "z", "\n", "</think>", "<|image_pad|>", "<|im_end|>"])
stop_strings = st.lists(st.sampled_from(["END", "ND", "é", "b\n", "a b", "</think>", '""']), max_size=3, unique=True)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """A text of these segments, cut into tokens anywhere, inside a character or a tag too."""
    spelled = "".join(draw(st.lists(segments, min_size=1, max_size=14))).encode()
    cuts = draw(st.sets(st.integers(1, max(len(spelled) - 1, 1)), max_size=12))
    edges = [0, *sorted(cut for cut in cuts if cut < len(spelled)), len(spelled)]
    pieces = [list(spelled[a:b]) for a, b in itertools.pairwise(edges)]
    reply: dict[str, Any] = {"pieces_bytes": pieces, "finish": draw(st.sampled_from(["stop", "stop", "never"]))}
    rivals = draw(st.sets(others, max_size=3))
    if rivals:
        # real choices: the seed decides between the scripted token and these
        reply["logits"] = dict.fromkeys(sorted(rivals), 19.0)
    return reply


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    body = {
        "seed": draw(st.integers(0, 9)),
        "temperature": draw(st.sampled_from([0, 0.7, 1.5])),
        "max_tokens": draw(st.just(60) | st.integers(1, 24)),
        "enable_thinking": draw(st.booleans()),
        "stop": draw(stop_strings),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "thinking_budget": draw(st.none() | st.integers(1, 14)),
        "post_thinking": draw(st.none() | st.sampled_from([{}, {"temperature": 0.4, "top_k": 3, "seed": 5}])),
        "presence_penalty": draw(st.sampled_from([0, 1.5])),
    }
    if draw(st.booleans()):
        body |= {"logprobs": True, "top_logprobs": draw(st.sampled_from([0, 2, 20]))}
    return body


def check(scripted: Any, reply: dict[str, Any], body: dict[str, Any]) -> None:
    script = {"replies": [{**reply, "match": f"d{i}", **draft} for i, draft in enumerate(DRAFTS)]}
    with scripted(script, *LANES) as server:
        answers = server.runner.run(ask_all(server, body))
        assert server.engine.worker.lanes.pool.available == server.engine.worker.lanes.pool.total
    pairs = list(zip(answers[::2], answers[1::2], strict=True))
    reports = body.get("logprobs", False)
    for aggregate, stream in pairs:
        assert whole(aggregate) == added_up(stream, reports)
    finish, thought = (whole(answers[0])[key] for key in ("finish", "reasoning"))
    event(f"{finish}, {'with' if thought else 'no'} reasoning, {'with' if reports else 'no'} records")
    if body["post_thinking"] is None:
        # the answer's sampler begins at a round's edge; without it no draft may show
        assert whole(pairs[0][0]) == whole(pairs[1][0]) == whole(pairs[2][0])


async def ask_all(server: Any, body: dict[str, Any]) -> list[str]:
    """Aggregate and stream of each reply, all at the same time."""
    async with server.client() as client:

        async def ask(question: str, stream: bool) -> str:
            sent = {**body, "messages": [{"role": "user", "content": question}], "stream": stream}
            if stream:
                sent["stream_options"] = {"include_usage": True}
            response = await client.post(CHAT, content=msgspec.json.encode(sent), timeout=30)
            assert response.status_code == 200, response.text
            return response.text

        return await asyncio.gather(*(ask(f"d{i}", stream) for i in range(len(DRAFTS)) for stream in (False, True)))


def whole(aggregate: str) -> dict[str, Any]:
    answer = msgspec.json.decode(aggregate)
    (choice,) = answer["choices"]
    assert not (choice["logprobs"] or {}).get("refusal")
    return {
        "reasoning": choice["message"].get("reasoning_content", ""),
        "content": choice["message"]["content"],
        "records": choice["logprobs"] and choice["logprobs"]["content"],
        "finish": choice["finish_reason"],
        "usage": answer["usage"],
    }


def added_up(stream: str, reports: bool) -> dict[str, Any]:
    """What a client puts together, with the shape of every chunk checked on the way."""
    *events, end = (line.removeprefix("data: ") for line in stream.removesuffix("\n\n").split("\n\n"))
    assert end == "[DONE]"
    *chunks, last = map(msgspec.json.decode, events)
    assert last["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert (choices[-1]["delta"], choices[-1]["logprobs"]) == ({}, None)
    out: dict[str, Any] = {"reasoning": "", "content": "", "records": [] if reports else None}
    for choice in choices[1:-1]:
        # a chunk without text is there for its records only
        assert len(choice["delta"]) == 1 or (choice["delta"] == {} and choice["logprobs"])
        for key, name in (("reasoning_content", "reasoning"), ("content", "content")):
            assert choice["delta"].get(key) != ""
            out[name] += choice["delta"].get(key, "")
        assert not (choice["logprobs"] and "reasoning_content" in choice["delta"])
        if choice["logprobs"]:
            out["records"] += choice["logprobs"]["content"]
    return {**out, "finish": choices[-1]["finish_reason"], "usage": last["usage"]}


COMMON: Any = {
    "deadline": None,
    "phases": set(Phase) - {Phase.explain},  # minutes, with an engine for each example
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(max_examples=100, derandomize=True, **COMMON)
@given(reply=replies(), body=requests())
def test_a_stream_adds_up_to_the_aggregate_however_tokens_and_rounds_are_cut(scripted, reply, body):
    check(scripted, reply, body)


@pytest.mark.slow
@settings(max_examples=1000, **COMMON)
@given(reply=replies(), body=requests())
def test_a_stream_adds_up_to_the_aggregate_in_the_long_run(scripted, reply, body):
    check(scripted, reply, body)
