"""Responses bodies made from the tables that decode them and from good and spoilt Items: the status is one the contract
names, the answer is a whole Response or OpenAI's error object, and what was stored can be read again."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_openai_any_body import LEAK, junk, objects

from ninfer_core.testing import FakeEngine
from ninfer_openai.responses.types import (
    CountBody,
    CreateBody,
    FunctionIn,
    ItemIn,
    NamespaceIn,
    PartIn,
    ReasoningIn,
    TextIn,
    ToolChoiceIn,
)

PATHS = {"/v1/responses": CreateBody, "/v1/responses/input_tokens": CountBody}
SAID = [("reasoning", "Hm"), "O"]
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
GOOD_ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}], "id": "m1"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}], "status": "completed"},
    {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "r"}],
        "encrypted_content": None,
    },
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1E5}'},
    {"type": "function_call_output", "call_id": "1", "output": "o"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "o"}], "name": "f"},
]
GOOD_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    {"type": "web_search"},
]
CHOICES = [
    "auto",
    "none",
    "required",
    {"type": "function", "name": "f"},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
]
good_items, good_tools = st.sampled_from(GOOD_ITEMS), st.sampled_from(GOOD_TOOLS)
NEEDED = {"model": "fake", "input": "hi"}
FIELDS = {
    "input": st.lists(good_items | good_items | objects(ItemIn) | objects(PartIn) | junk, max_size=4),
    "tools": st.lists(good_tools | good_tools | objects(FunctionIn) | objects(NamespaceIn) | junk, max_size=2),
    "tool_choice": st.sampled_from(CHOICES) | objects(ToolChoiceIn) | junk,
    "reasoning": objects(ReasoningIn) | junk,
    "text": objects(TextIn) | st.just({"format": {"type": "text"}}) | junk,
    "stream": st.booleans(),
    "include": st.lists(
        st.sampled_from(["reasoning.encrypted_content", "message.output_text.logprobs", "x"]), max_size=2
    ),
}
common = partial(
    settings, deadline=None, phases=set(Phase) - {Phase.explain}, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def spoilt(draw: st.DrawFn) -> list[Any]:
    """A good conversation with one thing in it replaced, lost or doubled."""
    items = [dict(item) for item in draw(st.lists(st.sampled_from(GOOD_ITEMS), min_size=1, max_size=4))]
    at = draw(st.integers(0, len(items) - 1))
    key = draw(st.sampled_from(sorted(items[at])))
    if draw(st.booleans()):
        items[at][key] = draw(junk)
    else:
        del items[at][key]
    return items


@st.composite
def bodies(draw: st.DrawFn, struct: type[msgspec.Struct]) -> dict[str, Any]:
    """``previous_response_id`` is the number of a stored Response."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True))
    made = {
        name: draw(FIELDS[name]) for name in names if name in struct.__struct_fields__ or draw(st.integers(0, 9)) == 0
    }
    if draw(st.integers(0, 3)) == 0:
        made |= draw(objects(struct))
    if draw(st.integers(0, 3)) == 0:
        made["input"] = draw(spoilt())
    if draw(st.integers(0, 2)) == 0:
        made["previous_response_id"] = draw(st.sampled_from([0, 1, 2, 0, 1, 2, "resp_none"]))
    return {**NEEDED, **made}


def ask_many(site: Any, path: str, **how: Any) -> list[int]:
    """The statuses; ``site`` goes through all of it with one store."""
    statuses: list[int] = []
    # what is drawn must not depend on what came before, so these are continued and no others
    stored = [site.get("POST", "/v1/responses", {"model": "fake", "input": text}).json()["id"] for text in "abc"]

    @common(**how)
    @given(body=bodies(PATHS[path]))
    def ask(body: dict[str, Any]) -> None:
        parent = body.get("previous_response_id")
        if type(parent) is int and 0 <= parent < len(stored):
            body = {**body, "previous_response_id": stored[parent]}
        before = len(site.engine.jobs)
        answer = asyncio.run(site.ask("POST", path, body))
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            if path != "/v1/responses":
                assert set(answer.json()) == {"object", "input_tokens"}
                return
            assert len(site.engine.jobs) == before + 1
            response = whole(answer.text)
            found = asyncio.run(site.ask("GET", f"{path}/{response['id']}"))
            if body.get("store") is not False:
                assert found.json() == response
                assert asyncio.run(site.ask("GET", f"{path}/{response['id']}/input_items")).status_code == 200
            else:
                assert found.status_code == 404
            return
        assert len(site.engine.jobs) == before
        refused(answer)

    ask()
    return statuses


def whole(text: str) -> dict[str, Any]:
    if not text.startswith("event: "):
        return msgspec.json.decode(text)
    frames = [frame.split("\n") for frame in text.removesuffix("\n\n").split("\n\n")]
    events = [msgspec.json.decode(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] in TERMINAL for event in events] == [*[False] * (len(events) - 1), True]
    return events[-1]["response"]


def refused(answer: Any) -> None:
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()
    assert set(error) == {"error"}
    assert {"message", "type", "code"} <= set(error["error"]) <= {"message", "type", "param", "code"}
    assert all(isinstance(value, str) for value in error["error"].values())
    assert error["error"]["type"] == ("not_found_error" if answer.status_code == 404 else "invalid_request_error")
    assert not LEAK.search(answer.text), answer.text
    assert len(answer.text) < 2000


LENIENT = {"lenient_tools": True, "lenient_image_detail": True, "lenient_assistant_history": True}


@pytest.mark.contract("responses.refused.named", "responses.refused.value")
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("path", PATHS)
def test_any_body_is_answered(serve, path, options):
    statuses = ask_many(serve(FakeEngine(pieces=SAID), **options), path, max_examples=120, derandomize=True)
    assert statuses.count(200) > 15


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("path", PATHS)
def test_any_body_is_answered_in_the_long_run(serve, path, options):
    ask_many(serve(FakeEngine(pieces=SAID), **options), path, max_examples=10_000)
