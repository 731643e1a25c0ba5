"""Items in: what is read, what one turn is, which results answer which calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import Message, Part, ToolCall

contract = pytest.mark.contract
DATA = "data:image/png;base64,iVBORw0KGgo="


def user(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **more}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def thought(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text} for text in texts], **more}


def call(id: str, name: str = "f", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments, **more}


def result(id: str, output: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output, **more}


@pytest.fixture
def turns(responses):
    def read(*items: Any, **options: Any) -> tuple[Message, ...]:
        return responses(**options).job(input=list(items)).messages

    return read


@pytest.fixture
def refused(responses):
    """Code, param and message of the 400."""

    def read(*items: Any, **options: Any) -> tuple[str, str | None, str]:
        status, *found = responses(**options).refusal(input=list(items))
        assert status == 400
        return tuple(found)

    return read


def shape(messages: tuple[Message, ...]) -> list[tuple[Any, ...]]:
    """Role, texts, reasoning, calls, and the call a result answers."""
    return [
        (m.role, [part.text for part in m.content], m.reasoning, [one.id for one in m.tool_calls], m.tool_call_id)
        for m in messages
    ]


@contract("responses.item.message", "responses.system.positions", "responses.item.metadata")
def test_messages_of_every_role_keep_their_place(turns):
    made = turns(
        {"role": "system", "content": "a"},
        user("b", status="weird", phase="commentary"),
        {"role": "developer", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
        {"role": "assistant", "content": "e", "phase": "final_answer"},
        user(""),
        {"role": "user", "content": []},
    )
    assert shape(made) == [
        ("system", ["a"], None, [], None),
        ("user", ["b"], None, [], None),
        ("developer", ["c", "d"], None, [], None),
        ("assistant", ["e"], None, [], None),
        ("user", [""], None, [], None),
        ("user", [], None, [], None),
    ]
    assert [message.place for message in made] == [f"input[{at}]" for at in range(6)]


@contract("responses.item.parts")
def test_an_assistants_parts_are_text_and_refusals(turns):
    parts = [
        {"type": "output_text", "text": "a", "annotations": [{"x": 1}], "logprobs": []},
        {"type": "refusal", "refusal": "no"},
        {"type": "input_text", "text": "b"},
    ]
    (made,) = turns({"role": "assistant", "content": parts}, user())[:1]
    assert made.content == (Part(text="a"), Part(text="no"), Part(text="b"))


@contract("responses.group.order", "responses.group.appends", "responses.group.reasoning-only")
def test_what_the_assistant_said_in_a_row_is_one_turn(turns):
    made = turns(
        user(),
        thought("why ", "not"),
        said("One. "),
        said("Two."),
        call("1", "f", '{"b": 1.0, "a": 1E5}'),
        call("2", "g"),
        result("2", "two"),
        result("1", [{"type": "input_text", "text": "o"}, {"type": "input_text", "text": "ne"}]),
        thought("alone"),
        user("next"),
        thought("a"),
        thought("b"),
    )
    assert shape(made) == [
        ("user", ["hi"], None, [], None),
        ("assistant", ["One. ", "Two."], "why not", ["1", "2"], None),
        ("tool", ["o", "ne"], None, [], "1"),
        ("tool", ["two"], None, [], "2"),
        ("assistant", [], "alone", [], None),
        ("user", ["next"], None, [], None),
        ("assistant", [], "ab", [], None),
    ]
    assert made[1].tool_calls == (
        ToolCall(id="1", name="f", arguments='{"b": 1.0, "a": 1E5}'),
        ToolCall(id="2", name="g", arguments="{}"),
    )


@contract("responses.group.ends", "responses.results.order")
def test_results_after_each_call_make_a_turn_of_each(turns):
    made = turns(user(), call("1"), result("1"), call("1"), result("1", "again"), said("ok"))
    assert [row[0] for row in shape(made)] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


@contract("responses.group.invalid-order")
@pytest.mark.parametrize(
    "items",
    [
        [said("a"), thought("b")],
        [call("1"), thought("b"), result("1")],
        [call("1"), said("b"), result("1")],
        [{"role": "assistant", "content": []}, thought("b")],
        [thought("a"), said("b"), call("1"), said("c"), result("1")],
    ],
    ids=["thought-after-text", "thought-after-call", "text-after-call", "thought-after-empty-text", "text-around-call"],
)
def test_an_order_that_no_turn_has_is_refused(refused, items):
    code, param, message = refused(user(), *items)
    assert code == "invalid_assistant_history"
    assert param in message


@contract("responses.lenient-history")
def test_a_lenient_server_lets_text_and_reasoning_join_the_turn_of_calls_before_them(turns, refused):
    lenient = {"lenient_assistant_history": True}
    made = turns(user(), call("1"), said("b"), thought("c"), call("2"), result("2"), result("1"), **lenient)
    assert shape(made)[1] == ("assistant", ["b"], "c", ["1", "2"], None)
    assert refused(user(), said("a"), thought("b"), **lenient)[0] == "invalid_assistant_history"


@contract("responses.results.validated")
@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([result("1")], "input[1]"),
        ([call("1"), result("2")], "input[2]"),
        ([call("1"), call("2"), result("1"), result("1")], "input[4]"),
        ([call("1"), result("1"), result("1")], "input[3]"),
        ([call("1"), call("2"), result("1")], "input"),
        ([call("1"), call("2"), result("1"), user("x")], "input[4]"),
        ([call("1"), call("2"), result("1"), said("x")], "input[4]"),
        ([call("1"), user("x")], "input[2]"),
        ([call("1")], "input"),
        ([call("1"), call("1"), result("1")], "input[2]"),
        ([call("1", "f"), result("1", name="g")], "input[2].name"),
        ([call("1", "f", namespace="n"), result("1", namespace="m")], "input[2].namespace"),
        ([call("1", "f"), result("1", namespace="m")], "input[2].namespace"),
        ([user("x"), result("1")], "input[2]"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else "-".join(one["type"][-6:] for one in value),
)
def test_results_that_do_not_answer_the_calls_are_refused(refused, items, param):
    code, found, message = refused(user(), *items)
    assert (code, found) == ("invalid_tool_history", param)
    assert f"'{param}" in message


@pytest.mark.parametrize("others", [[], [call("2")]], ids=["alone", "beside-another"])
def test_a_second_result_of_a_call_is_called_that(refused, others):
    _, _, message = refused(user(), call("1"), *others, *[result(one["call_id"]) for one in others], *[result("1")] * 2)
    assert message.endswith('is a second result of call "1".')
    _, _, message = refused(user(), call("1"), result("1"), user("x"), said("y"), result("1"))
    assert "no call of the turn before it" in message


@contract("responses.results.assertions", "responses.namespace.replayed")
def test_a_result_may_repeat_name_and_namespace(turns):
    made = turns(user(), call("1", "get", namespace="mcp__x"), result("1", name="get", namespace="mcp__x"))
    assert made[1].tool_calls[0].name == "mcp__x.get"


@contract(
    "responses.item.types",
    "responses.item.unsupported",
    "responses.item.reasoning",
    "responses.item.call",
    "responses.item.output",
    "responses.refused.value",
)
@pytest.mark.parametrize(
    ("item", "code", "place"),
    [
        (
            {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}},
            "input_item_not_supported",
            ".type",
        ),
        ({"type": "custom_tool_call", "call_id": "1", "name": "n", "input": "x"}, "input_item_not_supported", ".type"),
        ({"type": "tool_search_call", "arguments": {"a": 1}}, "input_item_not_supported", ".type"),
        ({"type": "computer_call_output", "call_id": "1", "output": {}}, "input_item_not_supported", ".type"),
        ({"type": "item_reference", "id": "msg_1"}, "input_item_not_supported", ".type"),
        ({"type": "input_text", "text": "x"}, "input_item_not_supported", ".type"),
        ({"id": "msg_1"}, "missing_required_parameter", ".type"),
        ({"type": 5}, "invalid_type", ".type"),
        ({"role": "robot", "content": "x"}, "invalid_value", ".role"),
        ({"type": "message", "content": "x"}, "missing_required_parameter", ".role"),
        ({"role": "user"}, "missing_required_parameter", ".content"),
        ({"role": "user", "content": None}, "missing_required_parameter", ".content"),
        ({"role": "user", "content": 5}, "invalid_type", ".content"),
        ({"role": "user", "content": [{"text": "x"}]}, "missing_required_parameter", ".content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "missing_required_parameter", ".content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": 1}]}, "invalid_type", ".content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "invalid_value", ".content[0].type"),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, "invalid_value", ".content[0].type"),
        ({"role": "system", "content": [{"type": "input_image"}]}, "invalid_value", ".content[0].type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "missing_required_parameter", ".content[0].refusal"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input_file_not_supported", ".content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio_not_supported", ".content[0]"),
        ({**user(), "id": ""}, "invalid_value", ".id"),
        ({**user(), "id": 5}, "invalid_type", ".id"),
        ({**user(), "phase": 5}, "invalid_type", ".phase"),
        (
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            "reasoning_without_text_not_supported",
            ".content",
        ),
        ({"type": "reasoning", "content": []}, "reasoning_without_text_not_supported", ".content"),
        ({"type": "reasoning", "content": "x"}, "reasoning_without_text_not_supported", ".content"),
        ({"type": "reasoning", "content": [{"type": "text", "text": "x"}]}, "invalid_value", ".content[0].type"),
        (
            {"type": "reasoning", "content": [{"type": "reasoning_text"}]},
            "missing_required_parameter",
            ".content[0].text",
        ),
        ({"type": "reasoning", "content": [], "summary": "x"}, "invalid_type", ".summary"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "missing_required_parameter", ".call_id"),
        (call(""), "invalid_value", ".call_id"),
        (call("1", ""), "invalid_value", ".name"),
        ({"type": "function_call", "call_id": "1", "arguments": "{}"}, "missing_required_parameter", ".name"),
        ({"type": "function_call", "call_id": "1", "name": "f"}, "missing_required_parameter", ".arguments"),
        (call("1", namespace=""), "invalid_value", ".namespace"),
        (call("1", arguments=""), "invalid_value", ".arguments"),
        (call("1", arguments="[1]"), "invalid_value", ".arguments"),
        (call("1", arguments="{'a': 1}"), "invalid_value", ".arguments"),
        (call("1", arguments='{"a": NaN}'), "invalid_value", ".arguments"),
        (call("1", arguments={"a": 1}), "invalid_type", ".arguments"),
        (call("1", status="incomplete"), "partial_item_not_supported", ".status"),
        ({"type": "function_call_output", "output": "x"}, "missing_required_parameter", ".call_id"),
        ({"type": "function_call_output", "call_id": "1"}, "missing_required_parameter", ".output"),
        (result("1", []), "invalid_value", ".output"),
        (result("1", [{"type": "output_text", "text": "x"}]), "invalid_value", ".output[0].type"),
        (result("1", {"a": 1}), "invalid_type", ".output"),
        (result("1", status="in_progress"), "partial_item_not_supported", ".status"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_item_that_is_not_read_is_refused_by_place(refused, item, code, place):
    found, param, message = refused(user(), item)
    assert (found, param) == (code, f"input[1]{place}")
    assert f"'input[1]{place}" in message


@contract("responses.item.media", "responses.image-detail", "media.off")
@pytest.mark.parametrize(
    ("part", "code", "place"),
    [
        ({"type": "input_image", "image_url": DATA}, "vision_disabled", ""),
        ({"type": "input_image", "image_url": DATA, "detail": "low"}, "vision_disabled", ""),
        ({"type": "input_video", "video_url": "https://x/y.mp4"}, "vision_disabled", ""),
        ({"type": "input_image", "image_url": DATA, "detail": "original"}, "image_detail_not_supported", ".detail"),
        ({"type": "input_image", "file_id": "file_1"}, "file_id_not_supported", ".file_id"),
        ({"type": "input_image"}, "missing_required_parameter", ".image_url"),
        ({"type": "input_image", "image_url": {"url": DATA}}, "invalid_type", ".image_url"),
        ({"type": "input_video"}, "missing_required_parameter", ".video_url"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_media_is_checked_and_refused_without_vision(refused, part, code, place):
    assert refused({"role": "user", "content": [part]})[:2] == (code, f"input[0].content[0]{place}")
    if part["type"] == "input_image":
        items = (user(), call("1"), result("1", [part]))
        assert refused(*items)[:2] == (code, f"input[2].output[0]{place}")
    if code == "image_detail_not_supported":
        lenient = refused({"role": "user", "content": [part]}, lenient_image_detail=True)
        assert lenient[:2] == ("vision_disabled", "input[0].content[0]")


def part(text: str, marked: bool) -> dict[str, Any]:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if marked else {}
    return {"type": "input_text", "text": text, **mark}


@contract("responses.breakpoints")
def test_up_to_four_breakpoints_become_boundaries(turns, refused):
    marked = [user([part("a", True), part("b", False)]), call("1"), result("1", [part("c", True)])]
    made = turns(*marked)
    assert [[one.cache_boundary for one in m.content] for m in made] == [[True, False], [], [True]]
    five = {"role": "user", "content": [part(str(at), True) for at in range(5)]}
    assert refused(five)[:2] == ("invalid_value", "input[0].content[4].prompt_cache_breakpoint")
    for wrong, place in ((None, ""), ({"mode": "implicit"}, ".mode"), ({}, ".mode")):
        item = user([{"type": "input_text", "text": "x", "prompt_cache_breakpoint": wrong}])
        if wrong is None:
            turns(item)
        else:
            assert refused(item)[1] == f"input[0].content[0].prompt_cache_breakpoint{place}"
    text = {"type": "output_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert refused(user(), {"role": "assistant", "content": [text]})[:2] == (
        "invalid_value",
        "input[1].content[0].prompt_cache_breakpoint",
    )


@contract("responses.breakpoints")
def test_the_latest_breakpoints_of_a_long_conversation_count(responses):
    server = responses()
    before = server.create(input=[user([part(str(at), True) for at in range(4)])])["id"]
    job = server.job(input=[user([part("x", True), part("y", True)])], previous_response_id=before)
    assert [[one.cache_boundary for one in m.content] for m in job.messages] == [
        [False, False, True, True],
        [False],
        [True, True],
    ]


@contract("responses.ids.kept", "responses.ids.duplicate")
def test_ids_are_kept_made_and_unique(responses, refused):
    server = responses()
    id = server.create(input=[user(id="mine"), said("a"), user("b")])["id"]
    listed = msgspec.json.decode(server.ask("GET", f"/{id}/input_items", order="asc").body)["data"]
    assert [item["id"] for item in listed] == ["mine", "msg_1_1", "msg_1_2"]
    assert refused(user(id="a"), user(id="a"))[:2] == ("invalid_value", "input[1].id")
    again = server.refusal(input=[user("x"), user(id="mine")], previous_response_id=id)
    assert again[:3] == (400, "invalid_value", "input[1].id")


ITEMS = st.sampled_from(
    [
        user(),
        user("x", id="one"),
        said("a"),
        thought("t"),
        call("1"),
        call("2"),
        result("1"),
        result("2"),
        {"role": "system", "content": "s"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(items=st.lists(ITEMS, min_size=1, max_size=9), lenient=st.booleans())
def test_any_order_is_a_history_or_refused(responses, items, lenient):
    server = responses(lenient_assistant_history=lenient)
    answer = server.ask("POST", "", {"model": "fake", "input": items})
    if answer.status != 200:
        code = msgspec.json.decode(answer.body)["error"]["code"]
        assert code in ("invalid_assistant_history", "invalid_tool_history", "invalid_value")
        return
    messages = server.engine.jobs[-1].messages
    flat = [part.text for message in messages for part in message.content]
    if not lenient:
        # nothing is lost and only results may change their order
        texts = [
            item["content"] if isinstance(item.get("content"), str) else item["content"][0]["text"]
            for item in items
            if item.get("type") in (None, "message")
        ]
        assert [text for text in flat if text != "done"] == texts
    for at, message in enumerate(messages):
        assert not (message.role == "assistant" and at and messages[at - 1].role == "assistant")
        if message.tool_calls:
            wanted = [one.id for one in message.tool_calls]
            assert [m.tool_call_id for m in messages[at + 1 : at + 1 + len(wanted)]] == wanted
    assert sum(len(m.tool_calls) for m in messages) == sum(m.role == "tool" for m in messages)
