"""Whatever a model says, in whatever tokens, rounds and batches: a chat stream adds up to the aggregate answer."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"
DRAFTS: tuple[dict[str, Any], ...] = ({}, {"draft": [0, 2, 1]}, {"draft": [5, 1, 3]})  # right tokens per round
LANES = ("--max-context", "512", "--kv-capacity", "3072", "--max-concurrency", "6", "--max-pending-requests", "32")

CALL = "<tool_call>\n<function=f>\n<parameter=p>\nEé\n</parameter>\n</function>\n</tool_call>"
TOOLS = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]
PLAIN = ["a", "b", " ", "\n", "é", "🌍", "END", "EN", "</think>", "</think>\n\n", "</thi", "<think>", '"']
MARKUP = ["<tool_call>", "<function=f>\n", "<parameter=p>", "</parameter>", "</function>", "</tool_call>"]
CALLS = [CALL, CALL.replace("=f>", "=g>").replace("=p>", "=input>"), '<invoke name="f"></invoke>']
segments = st.sampled_from([*PLAIN, "<|image_pad|>", *MARKUP, *CALLS])
others = st.sampled_from(["a", "b", "z", "\n", "</think>", "<|image_pad|>", "<|im_end|>"])
stop_strings = st.lists(st.sampled_from(["END", "ND", "é", "b\n", "a b", "</think>", '""']), max_size=3, unique=True)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """A text of these segments, cut into tokens anywhere, inside a character or a tag too."""
    spelled = "".join(draw(st.lists(segments, min_size=1, max_size=10))).encode()
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
        "max_tokens": draw(st.just(90) | st.integers(1, 24)),
        "enable_thinking": draw(st.booleans()),
        "stop": draw(stop_strings),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "thinking_budget": draw(st.none() | st.integers(1, 14)),
        "post_thinking": draw(st.sampled_from([None, None, None, {}, {"temperature": 0.4, "top_k": 3, "seed": 5}])),
        "presence_penalty": draw(st.sampled_from([0, 1.5])),
    }
    if draw(st.booleans()):
        body |= {"tools": TOOLS, "parallel_tool_calls": draw(st.booleans())}
    if draw(st.sampled_from([True, True, False])):
        body |= {"logprobs": True, "top_logprobs": draw(st.sampled_from([0, 2, 20]))}
    return body


Case = tuple[dict[str, Any], dict[str, Any]]  # what the model says, what is asked


def check(scripted: Any, cases: list[Case]) -> None:
    """All the cases at the same time, each drafted in every way."""
    replies = [
        {**reply, "match": f"c{at}d{i}", **draft}
        for at, (reply, _) in enumerate(cases)
        for i, draft in enumerate(DRAFTS)
    ]
    with scripted({"replies": replies}, *LANES) as server:
        answers = iter(server.runner.run(ask_all(server, [body for _, body in cases])))
        assert server.engine.worker.lanes.pool.available == server.engine.worker.lanes.pool.total
    for _, body in cases:
        check_one(body, [(next(answers), next(answers)) for _ in DRAFTS])


def check_one(body: dict[str, Any], pairs: list[tuple[str, str]]) -> None:
    reports = body.get("logprobs", False)
    answers, places = [], []
    for aggregate, stream in pairs:
        together, spans = added_up(stream, reports)
        assert whole(aggregate) == together
        answers.append(together)
        places.append(spans)
    finish, thought = (answers[0][key] for key in ("finish", "reasoning"))
    event(f"{finish}, {'with' if thought else 'no'} reasoning, {'with' if reports else 'no'} records")
    if body["post_thinking"] is None:
        # the answer's sampler begins at a round's edge; without it no draft may show
        assert answers[0] == answers[1] == answers[2]
        # and a record came with its text each time: all three chunks hold the character it begins with
        for spans in zip(*places, strict=True):
            assert max(start for start, _ in spans) < min(end for _, end in spans)


async def ask_all(server: Any, bodies: list[dict[str, Any]]) -> list[str]:
    """Aggregate and stream of each draft of each case, in this order, all at the same time."""
    async with server.client() as client:

        async def ask(question: str, body: dict[str, Any], stream: bool) -> str:
            sent = {**body, "messages": [{"role": "user", "content": question}], "stream": stream}
            if stream:
                sent["stream_options"] = {"include_usage": True}
            response = await client.post(CHAT, content=msgspec.json.encode(sent), timeout=30)
            assert response.status_code == 200, response.text
            return response.text

        return await asyncio.gather(
            *(
                ask(f"c{at}d{i}", body, stream)
                for at, body in enumerate(bodies)
                for i in range(len(DRAFTS))
                for stream in (False, True)
            )
        )


def whole(aggregate: str) -> dict[str, Any]:
    answer = msgspec.json.decode(aggregate)
    (choice,) = answer["choices"]
    assert not (choice["logprobs"] or {}).get("refusal")
    return {
        "reasoning": choice["message"].get("reasoning_content", ""),
        "content": choice["message"]["content"] or "",
        "calls": [told(call) for call in choice["message"].get("tool_calls", ())],
        "records": choice["logprobs"] and choice["logprobs"]["content"],
        "finish": choice["finish_reason"],
        "usage": answer["usage"],
    }


def told(call: dict[str, Any]) -> dict[str, Any]:
    """A call without the id of its answer."""
    return {key: value for key, value in call.items() if key not in ("id", "index")}


def added_up(stream: str, reports: bool) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """What a client puts together, with the shape of every chunk checked on the way; and for each record the span of
    the answer, in characters, that came with it."""
    lines = [line for line in stream.removesuffix("\n\n").split("\n\n") if not line.startswith(":")]  # a slow machine
    *events, end = (line.removeprefix("data: ") for line in lines)
    assert end == "[DONE]"
    *chunks, last = map(msgspec.json.decode, events)
    assert last["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert (choices[-1]["delta"], choices[-1]["logprobs"]) == ({}, None)
    out: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "records": [] if reports else None}
    spans: list[tuple[int, float]] = []
    for choice in choices[1:-1]:
        start = len(out["content"])
        # a chunk without text is there for its records only
        assert len(choice["delta"]) == 1 or (choice["delta"] == {} and choice["logprobs"])
        for key, name in (("reasoning_content", "reasoning"), ("content", "content")):
            assert choice["delta"].get(key) != ""
            out[name] += choice["delta"].get(key, "")
        for piece in choice["delta"].get("tool_calls", ()):
            if "id" in piece:
                assert piece["index"] == len(out["calls"])
                out["calls"].append(told(piece))
            else:
                (kind,) = piece.keys() - {"index"}
                for member, text in piece[kind].items():
                    out["calls"][piece["index"]][kind][member] += text
        assert not (choice["logprobs"] and "reasoning_content" in choice["delta"])
        if choice["logprobs"]:
            out["records"] += choice["logprobs"]["content"]
            # the markup of a call is text the client does not see: it lies somewhere after what it has seen
            end_of_span = len(out["content"]) if "content" in choice["delta"] else math.inf
            spans += [(start, end_of_span)] * len(choice["logprobs"]["content"])
    return {**out, "finish": choices[-1]["finish_reason"], "usage": last["usage"]}, spans


COMMON: Any = {
    "deadline": None,
    "phases": set(Phase) - {Phase.explain},  # minutes, with an engine for each example
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
several = st.lists(st.tuples(replies(), requests()), min_size=1, max_size=4)


@pytest.mark.contract("logprobs.modes", "logprobs.drafts", "chat.usage.details")
@settings(max_examples=24, derandomize=True, **COMMON)
@given(cases=several)
def test_a_stream_adds_up_to_the_aggregate_however_tokens_and_rounds_are_cut(scripted, cases):
    check(scripted, cases)


@pytest.mark.slow
@settings(max_examples=400, **COMMON)
@given(cases=several)
def test_a_stream_adds_up_to_the_aggregate_in_the_long_run(scripted, cases):
    check(scripted, cases)
