"""A Response as an event stream: the order of its events, what they carry, and that they add up to the aggregate."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import ApiError, GeneratedCall, HttpRequest, Overloaded, Timings, Unavailable
from ninfer_core.testing import FakeEngine
from ninfer_openai.responses.answer import PLACEHOLDER
from ninfer_openai.responses.plan import ENCRYPTED, LOGPROBS

contract = pytest.mark.contract
TOOLS = [
    {"type": "function", "name": "now"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
]
GROWS = ("status", "content", "arguments", "encrypted_content")  # members of an Item that are whole at its end
SUMMARY = [{"type": "summary_text", "text": PLACEHOLDER.text}]


def calls(*named: tuple[str, str]) -> list[GeneratedCall]:
    return [GeneratedCall(name=name, arguments=text) for name, text in named]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types, with runs of deltas as one."""
    return [kind for kind, _ in itertools.groupby(event["type"].removeprefix("response.") for event in events)]


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The terminal object, once everything before it has been checked to lead there."""
    first, second, *middle, end = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"] == second["response"]
    assert first["response"]["status"] == "in_progress" and first["response"]["output"] == []
    grown: list[dict[str, Any]] = []
    for event in middle:
        grow(grown, event)
    final = end["response"]
    assert [one["item"] for one in grown] == final["output"]
    assert all(one["closed"] for one in grown)
    same = set(final) - {"status", "output", "usage", "completed_at", "incomplete_details", "error"}
    assert {key: final[key] for key in same} == {key: first["response"][key] for key in same}
    return final


def grow(grown: list[dict[str, Any]], event: dict[str, Any]) -> None:
    """Take in one event as a client does; every id and index has to fit."""
    kind = event["type"].removeprefix("response.")
    if kind == "output_item.added":
        assert event["output_index"] == len(grown)
        assert not grown or grown[-1]["closed"], "an Item begins before the one before it has ended"
        assert event["item"]["status"] == "in_progress"
        grown.append({"item": event["item"], "text": "", "summary": "", "records": [], "closed": False, "part": None})
        return
    one = grown[event["output_index"]]
    assert not one["closed"]
    item = one["item"]
    assert event.get("item_id", item["id"]) == item["id"]
    assert event.get("content_index", 0) == 0
    if kind.endswith(".delta"):
        one["summary" if "summary" in kind else "text"] += event["delta"]
        one["records"] += event.get("logprobs", [])
        assert event["delta"] or event["logprobs"]
    elif kind == "content_part.added":
        assert item["content"] == [] and event["part"]["text"] == ""
    elif kind in ("output_text.done", "reasoning_text.done"):
        assert event["text"] == one["text"]
        assert event.get("logprobs", []) == one["records"]
    elif kind == "reasoning_summary_text.done":
        assert event["text"] == one["summary"]
    elif kind == "function_call_arguments.done":
        assert event["arguments"] == one["text"]
    elif kind == "content_part.done":
        one["part"] = event["part"]
    elif kind == "output_item.done":
        assert {key: value for key, value in event["item"].items() if key not in GROWS} == {
            key: value for key, value in item.items() if key not in GROWS
        }
        finished(one, event["item"])
        one.update(item=event["item"], closed=True)


def finished(one: dict[str, Any], item: dict[str, Any]) -> None:
    if item["type"] == "function_call":
        assert item["arguments"] == one["text"]
        return
    (part,) = item["content"]
    assert part == one["part"] and part["text"] == one["text"]
    bare = [
        {**record, "top_logprobs": [dict(top) for top in record["top_logprobs"]]} for record in part.get("logprobs", [])
    ]
    for record in bare:
        for token in (record, *record["top_logprobs"]):
            assert token.pop("bytes") is not None
    assert bare == one["records"]


@contract(
    "responses.stream.lifecycle",
    "responses.stream.frames",
    "responses.stream.no-done",
    "responses.output.text",
    "responses.modes",
)
def test_the_events_of_an_answer_are_in_order(responses):
    engine = FakeEngine(pieces=[("reasoning", "H"), ("reasoning", "m"), "O", "K", *calls(("now", "{}"))])
    answer = responses(engine).ask("POST", "", {"model": "fake", "input": "hi", "stream": True, "tools": TOOLS})
    assert answer.media_type.startswith("text/event-stream")
    assert b"[DONE]" not in answer.body
    events = responses(engine).stream(tools=TOOLS)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["O", "K"]
    assert added_up(events)["status"] == "completed"


@contract("responses.stream.arguments", "responses.namespace.restored")
@pytest.mark.parametrize("thread", [pytest.param(0, id="TRT-LLM-19227"), pytest.param(0, id="hermes-agent-83937")])
def test_a_call_without_arguments_is_whole(responses, thread):
    engine = FakeEngine(pieces=calls(("now", "{}"), ("n.f", '{"x": 1.0}')))
    final = added_up(responses(engine).stream(tools=TOOLS))
    assert [(item["name"], item.get("namespace"), item["arguments"]) for item in final["output"]] == [
        ("now", None, "{}"),
        ("f", "n", '{"x": 1.0}'),
    ]


@contract("responses.output.reasoning", "responses.incomplete.reasoning-only")
@pytest.mark.parametrize("thread", [pytest.param(0, id="RapidMLX-575"), pytest.param(0, id="FastFlowLM-739")])
def test_a_thought_that_was_cut_has_no_message_after_it(responses, thread):
    engine = FakeEngine(pieces=[("reasoning", "still thinking")], finish="output_limit")
    final = added_up(responses(engine).stream())
    assert final["status"] == "incomplete"
    (item,) = final["output"]
    assert (item["type"], item["status"], item["summary"]) == ("reasoning", "incomplete", [])
    assert item["content"] == [{"type": "reasoning_text", "text": "still thinking"}]
    assert responses(engine).create(input="hi") == final


def test_nothing_at_all_is_an_empty_message_unless_it_was_cut(responses):
    for finish, count in (("stop_token", 1), ("output_limit", 0)):
        engine = FakeEngine(pieces=[], finish=finish)
        final = added_up(responses(engine).stream())
        assert len(final["output"]) == count
        assert responses(engine).create(input="hi")["output"] == final["output"]


@contract("responses.summary.stream", "responses.summary.placeholder", "responses.summary.none")
@pytest.mark.parametrize(
    "asked", [{"summary": "auto"}, {"generate_summary": "concise"}, {"summary": "detailed"}], ids=str
)
def test_a_summary_is_the_placeholder_before_the_raw_text(responses, asked):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "OK"])
    events = responses(engine).stream(reasoning=asked)
    assert kinds(events)[2:10] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
    ]
    assert {event["summary_index"] for event in events if "summary" in event["type"]} == {0}
    (added,) = [e for e in events if e["type"] == "response.output_item.added" and e["item"]["type"] == "reasoning"]
    final = added_up(events)
    assert added["item"]["summary"] == final["output"][0]["summary"] == SUMMARY
    assert final["reasoning"]["summary"] == next(iter(asked.values()))
    assert responses(engine).create(input="hi", reasoning=asked)["output"][0]["summary"] == SUMMARY
    silent = responses(engine).stream(reasoning={"summary": None})
    assert not [event for event in silent if "summary" in event["type"]]
    assert added_up(silent)["output"][0]["summary"] == []


@contract("responses.encrypted.mirror", "responses.encrypted.stream", "responses.encrypted.none")
def test_the_mirror_of_reasoning_is_there_when_the_reasoning_is_whole(responses):
    engine = FakeEngine(pieces=[("reasoning", "H"), ("reasoning", "m"), "OK"])
    events = responses(engine).stream(include=[ENCRYPTED])
    items = [event["item"] for event in events if event["type"].startswith("response.output_item")]
    assert ["encrypted_content" in item for item in items] == [False, True, False, False]
    final = added_up(events)
    assert final["output"][0]["encrypted_content"] == items[1]["encrypted_content"] == "Hm"
    assert responses(engine).create(input="hi", include=[ENCRYPTED])["output"][0]["encrypted_content"] == "Hm"
    for body in (responses(FakeEngine()).stream(include=[ENCRYPTED]), responses(engine).stream()):
        assert b"encrypted_content" not in msgspec.json.encode(body)


@contract("logprobs.responses")
def test_records_are_with_the_text_they_belong_to(responses):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "O", "é", *calls(("now", "{}"), ("n.f", "{}"))])
    asked = {"include": [LOGPROBS], "top_logprobs": 2, "tools": TOOLS}
    events = responses(engine).stream(**asked)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [(event["delta"], len(event["logprobs"])) for event in deltas] == [("O", 1), ("é", 2), ("", 2), ("", 2)]
    assert deltas[1]["logprobs"][0] == {
        "token": "\ufffd",
        "logprob": -0.25,
        "top_logprobs": [{"token": "\ufffd", "logprob": -0.25}, {"token": "\ufffd", "logprob": -1.25}],
    }
    final = added_up(events)
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    records = final["output"][1]["content"][0]["logprobs"]
    assert [record["bytes"] for record in records] == [[79], [0xC3], [0xA9], [123], [125], [123], [125]]
    assert responses(engine).create(input="hi", **asked) == final
    assert all(event["logprobs"] == [] for event in responses(engine).stream() if "logprobs" in event)


@contract("responses.stream.failed")
@pytest.mark.parametrize("thread", [pytest.param(0, id="RapidMLX-1849"), pytest.param(0, id="omlx-3036")])
def test_a_failure_after_the_beginning_is_an_event_and_one_before_it_is_not(responses, thread):
    engine = FakeEngine(pieces=["par", *calls(("now", "{}")), "tial"], failure=Unavailable())
    events = responses(engine).stream(tools=TOOLS)
    end = events[-1]
    assert [event["type"] for event in events].count("response.failed") == 1 and end["type"] == "response.failed"
    response = end["response"]
    assert (response["status"], response["completed_at"]) == ("failed", None)
    assert response["error"] == {"code": "service_unavailable", "message": "The server is not available."}
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "message"]
    parts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert parts == ["par", "tial"]
    assert response["output"][-1]["status"] == "incomplete"
    assert response["usage"]["input_tokens"] == 5 and response["usage"]["input_tokens_details"] == {"cached_tokens": 3}
    server = responses(FakeEngine(refusal=Overloaded()))
    assert server.refusal(input="hi", stream=True)[:2] == (429, "server_overloaded")
    for wrong in ({"input": [{"type": "x"}]}, {"model": "gpt"}, {"text": {"format": {"type": "json_object"}}}):
        assert server.refusal(**{"input": "hi", "stream": True, **wrong})[0] in (400, 404)


@pytest.mark.parametrize("records", [False, True])
def test_a_stream_that_is_cut_gives_what_it_has_and_what_it_used(responses, records):
    pieces = [("reasoning", "why"), "so", *calls(("now", "{}"))]
    engine = FakeEngine(pieces=pieces, failure=Unavailable(), timings=Timings(predicted_n=7))
    end = responses(engine).stream(tools=TOOLS, **({"top_logprobs": 1} if records else {}))[-1]["response"]
    assert [item["type"] for item in end["output"]] == ["reasoning", "message", "function_call"]
    assert end["output"][1]["content"][0]["text"] == "so"
    assert end["output"][2]["arguments"] == "{}"
    used = end["usage"]
    assert used["output_tokens"] == 7 and used["output_tokens_details"] == {"reasoning_tokens": 3}
    assert used["total_tokens"] == used["input_tokens"] + 7


def test_a_stream_that_only_beat_when_it_failed_still_has_a_beginning(responses):
    server = responses()
    route, _ = server._route("POST", "/v1/responses")

    async def late() -> bytes:
        body = msgspec.json.encode({"model": "fake", "input": "hi", "stream": True})
        request = HttpRequest(method="POST", path="", params={}, query={}, headers={}, body=body, request_id="req_7")
        response = await route.handler(request)
        assert response.heartbeat.startswith(b":")
        told = response.late_error(ApiError("internal_error", "It broke.", status=500))
        await response.stream.aclose()
        return told

    told = asyncio.run(late()).decode()
    events = [msgspec.json.decode(frame.split("data: ")[1]) for frame in told.strip().split("\n\n")]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert events[-1]["response"]["error"]["code"] == "internal_error"
    assert (events[-1]["response"]["output"], events[-1]["response"]["usage"]) == ([], None)


TEXTS = st.lists(st.text(alphabet="abé🌍 \n", min_size=1, max_size=4), max_size=5)
CALLS = st.lists(
    st.sampled_from(calls(("now", "{}"), ("n.f", '{"x": "é"}'), ("malformed_tool_call", "{}"))), max_size=3
)
ASKS = st.fixed_dictionaries(
    {},
    optional={
        "include": st.lists(st.sampled_from([ENCRYPTED, LOGPROBS]), max_size=2),
        "top_logprobs": st.sampled_from([0, 2]),
        "reasoning": st.sampled_from([{"summary": "auto"}, {"effort": "low"}]),
        "store": st.booleans(),
    },
)


@contract("responses.stream.adds-up")
@settings(max_examples=120, deadline=None)
@given(
    thought=TEXTS,
    text=TEXTS,
    made=CALLS,
    finish=st.sampled_from(["stop_token", "stop_string", "output_limit", "context_capacity", "cancelled"]),
    asked=ASKS,
)
def test_a_stream_adds_up_to_the_aggregate(responses, thought, text, made, finish, asked):
    pieces = [*(("reasoning", one) for one in thought), *text, *made]
    engine = FakeEngine(pieces=pieces, finish=finish)
    whole = responses(engine).create(input="hi", tools=TOOLS, **asked)
    final = added_up(responses(engine).stream(tools=TOOLS, **asked))
    assert final == whole
    types = [item["type"] for item in final["output"]]
    assert types == sorted(types, key=["reasoning", "message", "function_call"].index)
    assert "".join(
        part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"]
    ) == "".join(text)
