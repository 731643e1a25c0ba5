"""A chat's answer on the wire: the order of a stream's chunks, calls among them, finish, counts."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest

from ninfer_core.api import GeneratedCall
from ninfer_core.api.jobs import FinishReason
from ninfer_core.testing import FakeEngine
from ninfer_openai.answers import FINISH

contract = pytest.mark.contract
PATH = "/v1/chat/completions"
FIRST = GeneratedCall(name="f", arguments='{"a":"é","b":[1.0]}')
SECOND = GeneratedCall(name="c", arguments='{"input":"x"}')
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}],
}


def streamed(post: Any, engine: FakeEngine, **more: Any) -> list[dict[str, Any]]:
    options = more.pop("options", {})
    *made, end = post(PATH, {**BODY, "stream": True, **more}, engine, **options).body.decode()[:-2].split("\n\n")
    assert end == "data: [DONE]"
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in made]


def whole(post: Any, engine: FakeEngine, **more: Any) -> dict[str, Any]:
    return msgspec.json.decode(post(PATH, {**BODY, **more}, engine).body)


def test_every_finish_of_the_engine_has_a_name():
    assert set(FINISH) == set(get_args(FinishReason))
    assert set(FINISH.values()) == {"stop", "length"}


@contract("chat.stream.order", "chat.reasoning.apart", "chat.modes")
def test_a_stream_is_role_reasoning_content_calls_finish(post):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "So: ", FIRST, SECOND])
    deltas = [(event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in streamed(post, engine)]
    opening = {"index": 0, "id": "call_10000", "type": "function", "function": {"name": "f", "arguments": ""}}
    other = {"index": 1, "id": "call_10001", "type": "custom", "custom": {"name": "c", "input": ""}}
    assert deltas == [
        ({"role": "assistant", "content": ""}, None),
        ({"reasoning_content": "Hm"}, None),
        ({"content": "So: "}, None),
        ({"tool_calls": [opening]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": FIRST.arguments}}]}, None),
        ({"tool_calls": [other]}, None),
        ({"tool_calls": [{"index": 1, "custom": {"input": "x"}}]}, None),
        ({}, "tool_calls"),
    ]


@contract("limit.endings")
@pytest.mark.parametrize(
    ("finish", "calls", "reason"),
    [
        ("stop_token", True, "tool_calls"),
        ("stop_string", True, "tool_calls"),
        ("output_limit", True, "length"),
        ("context_capacity", True, "length"),
        ("output_limit", False, "length"),
        ("stop_token", False, "stop"),
        ("cancelled", False, "stop"),
    ],
)
def test_calls_finish_an_answer_that_ended_by_itself(post, finish, calls, reason):
    """vllm 37937, vllm 45256: a limit inside a call is a limit."""
    engine = FakeEngine(pieces=[FIRST] if calls else ["x"], finish=finish)
    assert whole(post, engine)["choices"][0]["finish_reason"] == reason
    assert streamed(post, engine)[-1]["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("name", ["f", "c"])
def test_a_call_without_arguments_has_an_empty_object(post, name):
    """TRT-LLM 19227, hermes-agent 83937."""
    engine = FakeEngine(pieces=[GeneratedCall(name=name, arguments="{}")])
    (call,) = whole(post, engine)["choices"][0]["message"]["tool_calls"]
    given = call["function"]["arguments"] if name == "f" else call["custom"]["input"]
    assert given == ("{}" if name == "f" else "")
    assert added_up(streamed(post, engine))["tool_calls"] == [call]


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message a client puts together."""
    out: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                out[key] += delta.get(key, "")
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(out["tool_calls"]):
                    out["tool_calls"].append({k: v for k, v in piece.items() if k != "index"})
                    continue
                call = out["tool_calls"][piece["index"]]
                for kind, member in (("function", "arguments"), ("custom", "input")):
                    if kind in piece:
                        call[kind][member] += piece[kind][member]
    return out


@contract("chat.json.generated", "chat.usage.details", "chat.answer.nulls")
@pytest.mark.parametrize("calls", [[], [FIRST], [FIRST, SECOND]], ids=len)
@pytest.mark.parametrize("thought", ["", "Hm é"])
def test_a_stream_adds_up_to_the_aggregate_wherever_it_is_cut(post, calls, thought):
    answer = "a🌍\n"
    expected = whole(post, FakeEngine(pieces=[("reasoning", thought), answer, *calls]))
    message = expected["choices"][0]["message"]
    assert message["refusal"] is None
    assert expected["choices"][0]["logprobs"] is None
    assert expected["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert expected["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thought.encode())}
    for marks in itertools.product((False, True), repeat=len(thought + answer) - 1):
        edges = [0, *(at + 1 for at, cut in enumerate(marks) if cut), len(thought + answer)]
        pieces: list[Any] = []
        for a, b in itertools.pairwise(edges):
            cut = (thought + answer)[a:b]
            inside = cut[: max(len(thought) - a, 0)]
            pieces += [("reasoning", inside)] * bool(inside) + [cut[len(inside) :]] * bool(cut[len(inside) :])
        events = streamed(post, FakeEngine(pieces=[*pieces, *calls]), stream_options={"include_usage": True})
        made = added_up(events)
        assert made["content"] == message["content"]
        assert made["reasoning_content"] == message.get("reasoning_content", "")
        assert made["tool_calls"] == message.get("tool_calls", [])
        assert events[-1]["usage"] == expected["usage"]
        assert events[-2]["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]
        assert all(choice["logprobs"] is None for event in events for choice in event["choices"])


@contract("timings.last", "timings.always", "per-token.chunks", "per-token.off")
def test_timings_are_on_the_last_json_chunk_and_elsewhere_only_when_asked_for(post):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "a", FIRST])
    plain = streamed(post, engine)
    assert ["timings" in event for event in plain] == [False] * (len(plain) - 1) + [True]
    counted = streamed(post, engine, stream_options={"include_usage": True})
    assert ["timings" in event for event in counted] == [False] * (len(counted) - 1) + [True]
    assert counted[-1]["choices"] == []
    live = streamed(post, engine, timings_per_token=True)
    assert ["timings" in event for event in live] == [False, True, True, True, True, True]
    assert "timings" in whole(post, engine)


@contract("logprobs.channel", "logprobs.travel")
def test_records_of_a_calls_markup_ride_on_its_opening(post):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "a", FIRST])
    events = streamed(post, engine, logprobs=True)
    carried = [event["choices"][0]["logprobs"] for event in events]
    assert [bool(logprobs) for logprobs in carried] == [False, False, True, True, False, False]
    records = [record for logprobs in carried if logprobs for record in logprobs["content"]]
    assert records == whole(post, engine, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert len(records) == 1 + len(FIRST.arguments.encode())


@contract("chat.usage.choice", "chat.usage.include", "chat.stream.usage")
def test_the_usage_chunk_can_carry_a_choice(post):
    options = {"usage_chunk_choice": True}
    asked = {"stream_options": {"include_usage": True}}
    chunk = streamed(post, FakeEngine(pieces=["x"]), options=options, **asked)[-1]
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert chunk["usage"]["total_tokens"] == 7
    assert streamed(post, FakeEngine(pieces=["x"]), **asked)[-1]["choices"] == []
    assert all("usage" not in event for event in streamed(post, FakeEngine(pieces=["x"]), options=options))
