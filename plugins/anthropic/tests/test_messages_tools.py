"""Tool definitions and the choice among them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninfer_anthropic.to_job import Asked, Leniency, prompt_job
from ninfer_anthropic.types import PromptBody
from ninfer_core.api import ApiError

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
FIND = {"name": "find", "description": "Finds é.", "input_schema": SCHEMA}
NOW = {"name": "now", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
UNREACHABLE = [
    pytest.param(SEARCH, "tool_type_not_supported", "type", id="server"),
    pytest.param({"type": "bash_20250124", "name": "bash"}, "tool_type_not_supported", "type", id="provider"),
    pytest.param({"type": "computer_toolset_20260801"}, "tool_type_not_supported", "type", id="toolset"),
    pytest.param({"type": "mcp_toolset", "mcp_server_name": "m"}, "tool_type_not_supported", "type", id="mcp"),
    pytest.param({**FIND, "defer_loading": True}, "defer_loading_not_supported", "defer_loading", id="deferred"),
    pytest.param(
        {**FIND, "allowed_callers": ["code_execution_20260120"]},
        "allowed_callers_not_supported",
        "allowed_callers",
        id="not direct",
    ),
]


def asked(*, lenient: bool = False, **fields: Any) -> Asked:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return prompt_job(msgspec.json.decode(msgspec.json.encode(body), type=PromptBody), Leniency(tools=lenient))


def refusal(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    return caught.value.code, caught.value.param


def test_a_tool_in_the_form_of_openai_is_told_what_is_accepted_here():
    with pytest.raises(ApiError, match="OpenAI's tools; here a tool is its name, description and input_schema"):
        asked(tools=[{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}])


def offered(**fields: Any) -> list[str]:
    return [tool.name for tool in asked(**fields).job.tools]


@pytest.mark.contract("messages.tools.fields", "messages.tools.order")
def test_a_definition_is_shown_as_a_function_in_the_order_received():
    raw = (
        '{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"input_schema": {"type": "object", '
        '"properties": {"z": {"type":"number","default":1.0}, "a": {}}}, "name":"find","description":"Finds é.",'
        '"input_examples":[{"z": 1E5, "a": "\\u00e9"}],"type":"custom","strict":false,"defer_loading":false,'
        '"allowed_callers":["direct","code_execution_20260120"],"eager_input_streaming":true,'
        '"cache_control":{"type":"ephemeral"}}]}'
    )
    (tool,) = prompt_job(msgspec.json.decode(raw, type=PromptBody), Leniency()).job.tools
    schema = '{"type": "object", "properties": {"z": {"type":"number","default":1.0}, "a": {}}}'
    assert tool.parameters == schema
    assert tool.definition == (
        '{"type":"function","function":{"name":"find","description":"Finds é.","parameters":'
        + schema
        + ',"input_examples":[{"z": 1E5, "a": "\\u00e9"}]}}'
    )
    assert (tool.name, tool.place, tool.cache_boundary) == ("find", "tools[0]", True)


def test_what_is_left_out_is_not_shown():
    (tool,) = asked(tools=[{**NOW, "description": None, "input_examples": []}]).job.tools
    assert tool.definition == '{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}'
    assert not tool.cache_boundary


@pytest.mark.parametrize(
    ("tool", "code", "member"),
    [
        ({"input_schema": {}}, "missing_required_parameter", ".name"),
        ({**NOW, "name": ""}, "invalid_value", ".name"),
        ({**NOW, "name": "a b"}, "invalid_value", ".name"),
        ({**NOW, "name": "a" * 129}, "invalid_value", ".name"),
        ({**NOW, "name": "malformed_tool_call"}, "invalid_value", ".name"),
        ({"name": "now"}, "missing_required_parameter", ".input_schema"),
        ({"name": "now", "input_schema": None}, "missing_required_parameter", ".input_schema"),
        ({"name": "now", "input_schema": []}, "invalid_type", ".input_schema"),
        ({"name": "now", "input_schema": {"type": "string"}}, "invalid_value", ".input_schema.type"),
        ({**NOW, "input_examples": [{}, 1]}, "invalid_type", ".input_examples[1]"),
        ({**NOW, "strict": True}, "strict_not_supported", ".strict"),
    ],
)
def test_a_bad_definition_is_refused_at_its_place(tool, code, member):
    expected = (code, f"tools[1]{member}")
    assert refusal(tools=[FIND, tool]) == refusal(tools=[FIND, tool], lenient=True) == expected


def test_a_schema_without_a_type_is_an_objects():
    assert offered(tools=[{"name": "now", "input_schema": {}}]) == ["now"]


def test_a_name_is_given_once():
    assert refusal(tools=[FIND, NOW, FIND]) == ("invalid_value", "tools[2].name")


@pytest.mark.contract("messages.tools.refused")
@pytest.mark.parametrize(("tool", "code", "member"), UNREACHABLE)
def test_a_tool_nobody_could_call_is_refused(tool, code, member):
    assert refusal(tools=[NOW, tool]) == (code, f"tools[1].{member}")


@pytest.mark.parametrize(("tool", "code", "member"), UNREACHABLE)
def test_a_lenient_server_drops_it(tool, code, member):
    read = asked(tools=[tool, NOW], lenient=True)
    assert [one.name for one in read.job.tools] == ["now"]
    assert read.dropped_tools == (tool.get("name") or tool["type"],)


def test_a_lenient_server_drops_mcp_servers():
    servers = [{"name": "files", "url": "u"}, {"url": "u"}, 7]
    read = asked(tools=[SEARCH], mcp_servers=servers, lenient=True)
    assert read.dropped_tools == ("web_search", "files", "mcp_servers?1?", "mcp_servers?2?")
    assert asked(tools=[NOW], lenient=True).dropped_tools == ()


@pytest.mark.contract("messages.choice.auto-none")
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["find", "now"]),
        ({"type": "auto"}, ["find", "now"]),
        ({"type": "auto", "disable_parallel_tool_use": False}, ["find", "now"]),
        ({"type": "none"}, []),
    ],
)
def test_auto_offers_all_and_none_offers_none(choice, names):
    read = asked(tools=[FIND, NOW], tool_choice=choice).job
    assert ([tool.name for tool in read.tools], read.forced_tool, read.single_call) == (names, None, False)
    assert offered(tool_choice=choice) == []


@pytest.mark.contract("messages.choice.tool")
def test_a_named_tool_is_forced_and_the_others_stay_offered():
    read = asked(tools=[FIND, NOW], tool_choice={"type": "tool", "name": "now"}).job
    assert ([tool.name for tool in read.tools], read.forced_tool) == (["find", "now"], "now")


@pytest.mark.contract("messages.choice.any-one", "messages.choice.any-several")
def test_any_forces_the_only_tool_and_offers_several():
    assert asked(tools=[NOW], tool_choice={"type": "any"}).job.forced_tool == "now"
    several = asked(tools=[FIND, NOW], tool_choice={"type": "any"}, thinking={"type": "adaptive"}).job
    assert (len(several.tools), several.forced_tool) == (2, None)


@pytest.mark.contract("messages.choice.any-none")
def test_a_choice_needs_its_tool():
    assert refusal(tool_choice={"type": "any"}) == ("invalid_value", "tool_choice")
    assert refusal(tools=[SEARCH], tool_choice={"type": "any"}, lenient=True) == ("invalid_value", "tool_choice")
    assert refusal(tools=[NOW], tool_choice={"type": "tool", "name": "find"}) == ("invalid_value", "tool_choice.name")
    assert refusal(tools=[NOW], tool_choice={"type": "tool"}) == ("missing_required_parameter", "tool_choice.name")
    assert refusal(tools=[NOW], tool_choice={"type": "required"}) == ("invalid_value", "tool_choice.type")
    with pytest.raises(ApiError, match="was dropped"):
        asked(tools=[SEARCH], tool_choice={"type": "tool", "name": "web_search"}, lenient=True)


@pytest.mark.contract("messages.choice.reasoning")
@pytest.mark.parametrize("choice", [{"type": "tool", "name": "now"}, {"type": "any"}], ids=["tool", "any"])
def test_a_forced_call_needs_reasoning_off(choice):
    forced = {"tools": [NOW], "tool_choice": choice}
    for thinking in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 2048}):
        assert refusal(**forced, thinking=thinking) == ("tool_choice_not_supported", "tool_choice")
    assert refusal(**forced, chat_template_kwargs={"enable_thinking": True}) == (
        "tool_choice_not_supported",
        "tool_choice",
    )
    assert asked(**forced, thinking={"type": "disabled"}).job.forced_tool == "now"
    # reasoning that only a default turns on is switched off where the prompt is made; an effort turns nothing on
    for more in ({}, {"output_config": {"effort": "high"}}):
        read = asked(**forced, **more).job
        assert (read.forced_tool, read.thinking, read.effort) == ("now", None, None)


def test_a_forced_call_begins_an_answer():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so"}]
    fields = {"messages": messages, "thinking": {"type": "disabled"}, "tools": [NOW]}
    assert refusal(**fields, tool_choice={"type": "any"}) == ("tool_choice_not_supported", "tool_choice")
    assert asked(**fields).job.prefill


@pytest.mark.contract("messages.parallel")
@pytest.mark.parametrize("kind", ["auto", "any", "tool"])
def test_one_call_is_kept_on_request(kind):
    choice = {"type": kind, "name": "find", "disable_parallel_tool_use": True}
    assert asked(tools=[FIND, NOW], tool_choice=choice).job.single_call
