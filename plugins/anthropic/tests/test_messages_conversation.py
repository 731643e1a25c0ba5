"""Turns, calls and results: what a body's messages become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_anthropic.to_job import Leniency, prompt_job
from ninfer_anthropic.types import PromptBody
from ninfer_core.api import ApiError, ChatJob, Part

DISABLED = {"thinking": {"type": "disabled"}}


def job(messages: list[Any], **more: Any) -> ChatJob:
    body = {"model": "m", "messages": messages, **more}
    return prompt_job(msgspec.json.decode(msgspec.json.encode(body), type=PromptBody), Leniency()).job


def told(messages: list[Any], **more: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in job(messages, **more).messages]


def refusal(messages: list[Any], **more: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        job(messages, **more)
    assert caught.value.status == 400
    return caught.value


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def system(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "system"}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def call(id: str, name: str = "find", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(id: str, content: Any = "found", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


@pytest.mark.contract("messages.system.top")
@pytest.mark.parametrize("top", ["Be brief.", [text("Be "), text("brief.")]], ids=["text", "blocks"])
def test_top_level_system_text_is_the_first_turn(top):
    assert told([user("hi")], system=top) == [("system", "Be brief."), ("user", "hi")]


@pytest.mark.parametrize("top", ["", [], None], ids=["text", "blocks", "null"])
def test_an_empty_system_text_is_no_turn(top):
    assert told([user("hi")], system=top) == [("user", "hi")]


@pytest.mark.contract("messages.turns.joined")
def test_neighbours_of_one_role_are_one_turn():
    messages = [user("a"), user(text("b"), text("c")), assistant("d"), assistant(text("e")), user("f")]
    assert told(messages) == [("user", "abc"), ("assistant", "de"), ("user", "f")]


def test_thinking_and_calls_are_joined_too():
    messages = [
        user("q"),
        assistant({"type": "thinking", "thinking": "a"}, text("b"), call("1")),
        assistant({"type": "thinking", "thinking": "c", "signature": "x"}, call("2"), text("d")),
        user(result("1")),
        user(result("2"), text("go on")),
    ]
    turn = job(messages).messages[1]
    assert (turn.reasoning, turn.text, [one.id for one in turn.tool_calls]) == ("ac", "bd", ["1", "2"])
    assert told(messages)[2:] == [("tool", "found"), ("tool", "found"), ("user", "go on")]


@pytest.mark.contract("messages.turns.system")
@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        pytest.param([system("s"), user("a")], "system user", id="first"),
        pytest.param([user("a"), system("s"), user("b")], "user system user", id="between user messages"),
        pytest.param(
            [user("a"), assistant("b"), system("s"), user("c")], "user assistant system user", id="Qwen3.8-244"
        ),
        pytest.param([user("a"), assistant("b"), system("s")], "user assistant system", id="last"),
        pytest.param([system("s"), system("t"), user("a")], "system system user", id="two leading, vllm-41114"),
        pytest.param([system("s")], "system", id="alone, dify-33152"),
    ],
)
def test_a_system_message_is_a_turn_where_it_stands(messages, roles):
    assert [role for role, _ in told(messages)] == roles.split()
    assert [role for role, _ in told(messages, system="top")] == ["system", *roles.split()]


@pytest.mark.contract("messages.turns.system-append")
def test_one_more_system_message_leaves_what_is_before_it():
    messages = [user("a"), assistant("b"), user("c")]
    before, after = job(messages).messages, job([*messages, system("s")]).messages
    assert after[: len(before)] == before


@pytest.mark.contract("messages.turns.system-refused")
def test_no_system_message_between_calls_and_results():
    error = refusal([user("a"), assistant(call("1")), system("s"), user(result("1"))])
    assert (error.code, error.param) == ("invalid_tool_history", "messages[2]")


@pytest.mark.contract("messages.results.call-order", "messages.results.exactly-one")
def test_results_go_into_the_order_of_the_calls():
    messages = [user("q"), assistant(call("1"), call("2")), user(result("2", "two"), result("1", "one"), text("and"))]
    read = job(messages).messages
    assert [(one.role, one.tool_call_id, one.text) for one in read[2:]] == [
        ("tool", "1", "one"),
        ("tool", "2", "two"),
        ("user", None, "and"),
    ]
    assert [one.place for one in read[2:]] == ["messages[2].content[1]", "messages[2].content[0]", "messages[2]"]


@pytest.mark.contract("messages.results.exactly-one")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        pytest.param([assistant(call("1")), user("no")], "messages[2]", id="none"),
        pytest.param([assistant(call("1")), user()], "messages[2]", id="an empty turn"),
        pytest.param([assistant(call("1"), call("2")), user(result("1"))], "messages[2]", id="one missing"),
        pytest.param([assistant(call("1")), user(result("1"), result("1"))], "messages[2].content[1]", id="twice"),
        pytest.param([assistant(call("1")), user(result("1"), result("3"))], "messages[2].content[1]", id="unknown"),
        pytest.param([assistant(call("1")), user(text("so"), result("1"))], "messages[2].content[1]", id="not leading"),
        pytest.param(
            [assistant(call("1"), call("2")), user(result("1"), text("so")), user(result("2"))],
            "messages[3].content[0]",
            id="not leading the joined turn",
        ),
        pytest.param([assistant(call("1"), call("1")), user(result("1"))], "messages[1].content[1]", id="an id twice"),
        pytest.param([assistant("b"), user(result("1"))], "messages[2].content[0]", id="nobody called"),
        pytest.param([system("s"), user(result("1"))], "messages[2].content[0]", id="after another user turn"),
    ],
)
def test_calls_and_results_have_to_pair(messages, param):
    error = refusal([user("q"), *messages])
    assert (error.code, error.param) == ("invalid_tool_history", param)


@pytest.mark.contract("messages.results.first")
def test_a_history_may_begin_with_results():
    messages = [user(result("8", "b"), result("7", "a"), text("go on")), assistant("ok"), user("more")]
    expected = [("tool", "b"), ("tool", "a"), ("user", "go on"), ("assistant", "ok"), ("user", "more")]
    assert told(messages) == expected
    assert told([system("s"), *messages], system="top") == [("system", "top"), ("system", "s"), *expected]
    assert told([user(result("7"))]) == [("tool", "found")]


def test_an_id_may_come_again_in_a_later_turn():
    turn = [assistant(call("1")), user(result("1"))]
    assert [role for role, _ in told([user("q"), *turn, *turn])] == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.contract("messages.results.order", "messages.results.error")
@pytest.mark.parametrize(
    ("block", "parts"),
    [
        (result("1", [text("a"), text("b")]), ("a", "b")),
        (result("1", "a"), ("a",)),
        (result("1", ""), ("",)),
        (result("1", None), ()),
        ({"type": "tool_result", "tool_use_id": "1"}, ()),
        (result("1", []), ()),
        (result("1", "a", is_error=False), ("a",)),
        (result("1", "a", is_error=True), ("The tool failed:\n", "a")),
        (result("1", [], is_error=True), ("The tool failed:\n",)),
    ],
)
def test_a_result_keeps_its_blocks_and_says_when_it_failed(block, parts):
    assert job([user(block)]).messages[0].content == tuple(Part(text=part) for part in parts)


@pytest.mark.contract("messages.tools.order")
def test_the_input_of_a_call_stays_as_it_was_written():
    spelled = '{"path": "p", "edits": [{"new": 1.0, "old": "\\u00e9", "n": 123456789012345678901234567890, "e": 1E5}]}'
    body = (
        '{"model": "m", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": '
        f'[{{"type": "tool_use", "id": "1", "name": "edit", "input": {spelled}}}]}}, '
        '{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]}'
    )
    read = prompt_job(msgspec.json.decode(body, type=PromptBody), Leniency()).job
    assert read.messages[1].tool_calls[0].arguments == spelled


@pytest.mark.contract("messages.prefill")
@pytest.mark.parametrize("last", [[assistant("The an")], [assistant("The "), assistant(text("an"))], [assistant()]])
def test_an_answer_at_the_end_is_continued(last):
    read = job([user("q"), *last], **DISABLED)
    assert read.prefill
    assert read.messages[-1].role == "assistant"
    assert read.messages[-1].text in ("The an", "")
    assert job([user("q"), *last], chat_template_kwargs={"enable_thinking": False}).prefill


@pytest.mark.contract("messages.prefill.text-only")
@pytest.mark.parametrize(
    "block",
    [
        call("1"),
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "", "signature": "foreign"},
        {"type": "redacted_thinking", "data": "x"},
    ],
    ids=lambda block: block["type"],
)
def test_a_prefill_is_text_only(block):
    error = refusal([user("q"), assistant(text("so"), block)], **DISABLED)
    assert (error.code, error.param) == ("assistant_prefill_not_supported", "messages[1].content[1]")


@pytest.mark.contract("messages.prefill.thinking")
@pytest.mark.parametrize(
    "thinking", [{}, {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}]
)
def test_a_prefill_needs_thinking_disabled_in_the_request(thinking):
    error = refusal([user("q"), assistant("so")], **thinking)
    assert (error.code, error.param) == ("assistant_prefill_not_supported", "messages[1]")
    assert "disabled" in error.message


@pytest.mark.contract("messages.refused.blocks")
@pytest.mark.parametrize(
    ("kind", "role", "code"),
    [
        ("document", "user", "document_not_supported"),
        ("search_result", "user", "search_result_not_supported"),
        ("container_upload", "user", "container_upload_not_supported"),
        ("server_tool_use", "assistant", "server_tool_use_not_supported"),
        ("mcp_tool_use", "assistant", "mcp_tool_use_not_supported"),
        ("web_search_tool_result", "assistant", "web_search_tool_result_not_supported"),
        ("code_execution_tool_result", "assistant", "code_execution_tool_result_not_supported"),
        ("image", "user", "vision_disabled"),
        ("image", "system", "vision_disabled"),
        ("image", "assistant", "invalid_value"),
        ("tool_use", "user", "invalid_value"),
        ("tool_result", "assistant", "invalid_value"),
        ("thinking", "user", "invalid_value"),
        ("tool_result", "system", "invalid_value"),
        ("nothing_known", "user", "invalid_value"),
    ],
)
def test_a_block_that_cannot_be_read_is_refused_with_what_is_missing(kind, role, code):
    block = {
        "type": kind,
        "source": {"type": "file", "file_id": "f"},
        "content": [{"type": "x"}],
        "id": "1",
        "name": "n",
    }
    error = refusal([user("q"), {"role": role, "content": [text("a"), block]}, user("r")])
    place = "messages[1].content[1]"
    assert (error.code, error.param) == (code, f"{place}.type" if code == "invalid_value" else place)
    assert f'"{kind}"' in error.message or kind == "image"


@pytest.mark.contract("messages.refused.blocks")
@pytest.mark.parametrize(
    ("kind", "code"), [("image", "vision_disabled"), ("tool_reference", "tool_reference_not_supported")]
)
def test_a_block_inside_a_result_is_refused_alike(kind, code):
    error = refusal([user(result("1", [text("a"), {"type": kind}]))])
    assert (error.code, error.param) == (code, "messages[0].content[0].content[1]")


def test_system_text_holds_text_alone():
    assert refusal([user("q")], system=[{"type": "thinking"}]).param == "system[0].type"
    assert refusal([user("q"), system({"type": "document"})]).code == "document_not_supported"


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "developer", "content": "x"}, "invalid_value", "messages[0].role"),
        (user({"type": "text"}), "missing_required_parameter", "messages[0].content[0].text"),
        (user({"type": "tool_result"}), "missing_required_parameter", "messages[0].content[0].tool_use_id"),
        (user(result("")), "invalid_value", "messages[0].content[0].tool_use_id"),
        (user(result("1", {"a": 1})), "invalid_type", "messages[0].content[0].content"),
        (user(result("1", [{"type": "text"}])), "missing_required_parameter", "messages[0].content[0].content[0].text"),
        (assistant({"type": "thinking"}), "missing_required_parameter", "messages[0].content[0].thinking"),
        (assistant({**call("1"), "id": ""}), "invalid_value", "messages[0].content[0].id"),
        (assistant({**call("1"), "name": None}), "missing_required_parameter", "messages[0].content[0].name"),
        (assistant({**call("1"), "input": None}), "missing_required_parameter", "messages[0].content[0].input"),
        (assistant({**call("1"), "input": "{}"}), "invalid_type", "messages[0].content[0].input"),
    ],
)
def test_a_malformed_message_is_refused_at_its_place(message, code, param):
    error = refusal([message, *([user(result("1"))] if message["role"] == "assistant" else [])])
    assert (error.code, error.param) == (code, param)


@pytest.mark.contract("messages.cache.hints", "messages.cache.ignored")
def test_hints_mark_the_part_they_stand_on():
    ephemeral = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    read = job(
        [
            user(text("a"), text("b", **ephemeral)),
            assistant(text("c", **ephemeral), call("1"), call("2"), call("3")),
            user(
                result("1", [text("d", **ephemeral), text("e")]),
                result("2", "f", **ephemeral),
                result("3", None, **ephemeral),
                text("g", cache_control={"type": "persistent"}),
                text("h", cache_control=7),
            ),
        ],
        system=[text("s", **ephemeral), text("t")],
        cache_control={"type": "ephemeral"},
    )
    marked = [[(part.text, part.cache_boundary) for part in message.content] for message in read.messages]
    assert marked == [
        [("s", True), ("t", False)],
        [("a", False), ("b", True)],
        [("c", False)],
        [("d", True), ("e", False)],
        [("f", True)],
        [("", True)],
        [("g", False), ("h", False)],
    ]
    assert read.cache_boundary
    assert not job([user("q")]).cache_boundary
    assert not job([user("q")], cache_control={"type": "other"}).cache_boundary


# ------------------------------------------------------------------ any history


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], list[list[str]]]:
    """A history that pairs, its messages cut anywhere; and the ids of each turn's calls."""
    messages: list[Any] = []
    called: list[list[str]] = []
    for turn in range(draw(st.integers(1, 4))):
        ids = [f"{turn}.{at}" for at in range(draw(st.integers(0, 3)))]
        called.append(ids)
        answered = called[-2] if turn else []
        leading = [result(id) for id in draw(st.permutations(answered))]
        messages += cut(draw, "user", [*leading, *draw(st.just([]) if leading else st.just([text("u")])), text("v")])
        if draw(st.booleans()):
            messages.append(system("s"))
        messages += cut(draw, "assistant", draw(st.permutations([text("a"), *map(call, ids)])))
        if not ids and draw(st.booleans()):
            messages.append(system("s"))
    last = [result(id) for id in draw(st.permutations(called[-1]))]
    return [*messages, *cut(draw, "user", [*last, text("end")])], called


def cut(draw: st.DrawFn, role: str, blocks: list[Any]) -> list[Any]:
    """One turn as several messages."""
    at = draw(st.integers(0, len(blocks)))
    return [{"role": role, "content": part} for part in (blocks[:at], blocks[at:])]


@given(history=histories())
def test_any_history_that_pairs_is_read_in_call_order(history):
    messages, called = history
    read = job(messages).messages
    turns = [[one.id for one in message.tool_calls] for message in read if message.role == "assistant"]
    assert [sorted(ids) for ids in turns] == [sorted(ids) for ids in called]
    answers = [message.tool_call_id for message in read if message.role == "tool"]
    assert answers == [id for ids in turns for id in ids]


@given(history=histories(), data=st.data())
def test_a_history_that_lost_a_block_of_a_pair_is_refused(history, data):
    messages, _ = history
    pairs = [
        (at, i)
        for at, message in enumerate(messages)
        for i, block in enumerate(message["content"] if isinstance(message["content"], list) else ())
        if block["type"] in ("tool_use", "tool_result")
    ]
    if not pairs:
        return
    at, i = data.draw(st.sampled_from(pairs))
    kept = [block for j, block in enumerate(messages[at]["content"]) if j != i]
    broken = [{**message, "content": kept} if j == at else message for j, message in enumerate(messages)]
    assert refusal(broken).code == "invalid_tool_history"
