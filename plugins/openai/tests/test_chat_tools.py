"""Tools of a Chat Completions body: definitions, choices, and what a lenient server drops."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninfer_core.api import GeneratedCall, Tool
from ninfer_core.testing import FakeEngine
from ninfer_openai.chat.calls import input_of

contract = pytest.mark.contract


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def custom(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **more}}


def named(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


TWO = [function("f"), function("g")]
MIXED = [function("f"), custom("c"), function("g")]


@contract("chat.tools.function", "chat.json.order", "chat.json.no-canonical", "chat.tools.strict")
def test_a_function_reaches_the_prompt_as_it_was_received(job):
    schema = b'{"type":"object", "properties":{"z":{"type":"number","default":1.0},"a":{"const":1E5}}}'
    definition = (
        b'{"function":{"strict":true,"parameters":%s,"name":"f","x":"\xc3\xa9\\u00e9"} ,"type":"function"}' % schema
    )
    made = job(b'{"messages":[{"role":"user","content":"hi"}],"tools":[%s]}' % definition)
    assert made.tools == (Tool(name="f", definition=definition.decode(), parameters=schema.decode(), place="tools[0]"),)
    assert (made.forced_tool, made.single_call) == (None, False)


def test_a_function_may_have_no_parameters(job):
    assert job({"tools": [function("f")]}).tools[0].parameters is None
    assert job({"tools": [function("f", parameters=None, description=None, strict=None)]}).tools[0].parameters is None
    assert job({"tools": [function("f", parameters={})]}).tools[0].parameters == "{}"


@contract("chat.tools.custom")
def test_a_custom_tool_is_a_function_of_one_text_under_its_own_name(job):
    (tool,) = job({"tools": [custom("patch", description="Edit.", format={"type": "text"})]}).tools
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    function = {"name": "patch", "description": "Edit.", "parameters": schema}
    assert tool.name == "patch"
    assert msgspec.json.decode(tool.definition) == {"type": "function", "function": function}
    assert tool.parameters is not None and msgspec.json.decode(tool.parameters) == schema
    assert "description" not in job({"tools": [custom("p")]}).tools[0].definition


@contract("chat.errors.malformed", "chat.refused.named")
@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ({}, "invalid_type", "tools"),
        ([7], "invalid_type", "tools[0]"),
        ([{}], "missing_required_parameter", "tools[0].type"),
        ([{"type": 5}], "invalid_type", "tools[0].type"),
        ([{"type": "function"}], "missing_required_parameter", "tools[0].function"),
        ([{"type": "function", "function": {}}], "missing_required_parameter", "tools[0].function.name"),
        ([{"type": "function", "name": "f"}], "missing_required_parameter", "tools[0].function"),
        ([function("")], "invalid_value", "tools[0].function.name"),
        ([function("a b")], "invalid_value", "tools[0].function.name"),
        ([function("a>b")], "invalid_value", "tools[0].function.name"),
        ([function("é")], "invalid_value", "tools[0].function.name"),
        ([function("x" * 129)], "invalid_value", "tools[0].function.name"),
        ([function("malformed_tool_call")], "invalid_value", "tools[0].function.name"),
        ([function("f"), custom("f")], "invalid_value", "tools[1].custom.name"),
        ([function("f"), function("f")], "invalid_value", "tools[1].function.name"),
        ([function("f", parameters=[])], "invalid_value", "tools[0].function.parameters"),
        ([function("f", parameters="{}")], "invalid_value", "tools[0].function.parameters"),
        ([function("f", parameters=False)], "invalid_value", "tools[0].function.parameters"),
        ([function("f", description=1)], "invalid_type", "tools[0].function.description"),
        ([function("f", strict="yes")], "invalid_type", "tools[0].function.strict"),
        ([{"type": "custom"}], "missing_required_parameter", "tools[0].custom"),
        ([custom("c", format="text")], "invalid_type", "tools[0].custom.format"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
def test_a_malformed_definition_is_refused_by_place(refusal, tools, code, param, lenient):
    assert refusal({"tools": tools}, lenient_tools=lenient)[:2] == (code, param)


@pytest.mark.parametrize(
    "body",
    [
        b'[{"type":"function","function":{"name":"f","x":"\xff"}}]',
        b'[{"type":"function","function":{"name":"f","x":"\\ud800"}}]',
        b'[{"type":"function","function":{"name":"f","parameters":{"a":NaN}}}]',
    ],
)
def test_a_definition_that_is_no_json_is_refused(refusal, body):
    assert refusal(b'{"messages":[{"role":"user","content":"hi"}],"tools":%s}' % body)[0] == "invalid_json"


@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        ({"type": "web_search"}, "tool_type_not_supported", "tools[1].type"),
        ({"type": "mcp", "server_url": "https://x"}, "tool_type_not_supported", "tools[1].type"),
        (
            custom("c", format={"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}),
            "custom_tool_format_not_supported",
            "tools[1].custom.format.type",
        ),
    ],
    ids=["hosted", "remote", "grammar"],
)
@contract("http.lenient-tools")
def test_what_cannot_be_honoured_is_refused_or_dropped(job, refusal, tool, code, param):
    body = {"tools": [function("f"), tool]}
    assert refusal(body)[:2] == (code, param)
    assert [kept.name for kept in job(body, lenient_tools=True).tools] == ["f"]
    # what is left decides whether a call can be forced
    assert job({**body, "tool_choice": "required"}, lenient_tools=True).forced_tool == "f"


@contract("http.lenient-tools")
@pytest.mark.parametrize("stream", [False, True])
def test_dropped_tools_are_named_in_a_header(post, stream):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "web_search"}, {"type": "a\r\nx: y"}, custom("c", format={"type": "grammar"})],
        "stream": stream,
    }
    path = "/v1/chat/completions"
    assert post(path, body, lenient_tools=True).headers["x-ninfer-dropped-tools"] == "web_search, a??x:?y, c"
    many = post(path, {**body, "tools": [{"type": "x" * 500}] * 100}, lenient_tools=True)
    assert len(many.headers["x-ninfer-dropped-tools"]) < 3000
    assert many.headers["x-ninfer-dropped-tools"].endswith(", and 68 more")
    assert "x-ninfer-dropped-tools" not in post(path, {**body, "tools": TWO}, lenient_tools=True).headers


CHOICES: list[Any] = [
    (TWO, None, "fg", None),
    pytest.param(TWO, "auto", "fg", None, marks=pytest.mark.contract("chat.choice.auto-none")),
    pytest.param(TWO, "none", "", None, marks=pytest.mark.contract("chat.choice.auto-none")),
    ([], "none", "", None),
    pytest.param(TWO, named("function", "g"), "fg", "g", marks=pytest.mark.contract("chat.choice.named")),
    pytest.param(TWO[:1], "required", "f", "f", marks=pytest.mark.contract("chat.choice.required-one")),
    ([custom("c")], "required", "c", "c"),
    pytest.param(MIXED, named("custom", "c"), "c", None, marks=pytest.mark.contract("chat.choice.custom")),
    pytest.param(
        MIXED,
        allowed("auto", named("function", "g"), named("function", "f")),
        "fg",
        None,
        marks=pytest.mark.contract("chat.choice.allowed"),
    ),
    pytest.param(
        MIXED, allowed("required", named("function", "g")), "g", "g", marks=pytest.mark.contract("chat.choice.allowed")
    ),
    (MIXED, allowed("required", named("function", "g"), named("function", "g")), "g", "g"),
    (MIXED, allowed("auto", named("custom", "c")), "c", None),
    (MIXED, allowed("auto"), "", None),
]


@pytest.mark.parametrize(("tools", "choice", "offered", "forced"), CHOICES, ids=lambda value: str(value)[:70])
def test_a_choice_narrows_and_forces(job, tools, choice, offered, forced):
    made = job({"tools": tools, "tool_choice": choice})
    assert ("".join(tool.name for tool in made.tools), made.forced_tool) == (offered, forced)


@contract("chat.choice.required-several", "chat.errors.malformed")
@pytest.mark.parametrize(
    ("tools", "choice", "code", "param"),
    [
        (TWO, "required", "tool_choice_not_supported", "tool_choice"),
        ([], "required", "invalid_value", "tool_choice"),
        (TWO, "any", "invalid_value", "tool_choice"),
        (TWO, 5, "invalid_type", "tool_choice"),
        (TWO, [], "invalid_type", "tool_choice"),
        (TWO, {}, "missing_required_parameter", "tool_choice.type"),
        (TWO, {"type": "auto"}, "invalid_value", "tool_choice.type"),
        (TWO, {"type": "function"}, "missing_required_parameter", "tool_choice.function"),
        (TWO, {"type": "function", "function": {}}, "missing_required_parameter", "tool_choice.function.name"),
        (TWO, named("function", "h"), "invalid_value", "tool_choice.function.name"),
        ([], named("function", "f"), "invalid_value", "tool_choice.function.name"),
        (MIXED, named("function", "c"), "invalid_value", "tool_choice.function.name"),
        (MIXED, named("custom", "f"), "invalid_value", "tool_choice.custom.name"),
        (TWO, {"type": "custom"}, "missing_required_parameter", "tool_choice.custom"),
        (TWO, {"type": "allowed_tools"}, "missing_required_parameter", "tool_choice.allowed_tools"),
        (TWO, allowed("any", named("function", "f")), "invalid_value", "tool_choice.allowed_tools.mode"),
        (TWO, allowed("required"), "invalid_value", "tool_choice.allowed_tools.mode"),
        (
            TWO,
            allowed("required", named("function", "f"), named("function", "g")),
            "tool_choice_not_supported",
            "tool_choice.allowed_tools.mode",
        ),
        (
            TWO,
            allowed("auto", named("function", "h")),
            "invalid_value",
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (TWO, allowed("auto", {"type": "mcp"}), "invalid_value", "tool_choice.allowed_tools.tools[0].type"),
        (
            TWO,
            allowed("auto", {"type": "function"}),
            "missing_required_parameter",
            "tool_choice.allowed_tools.tools[0].function",
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_a_choice_that_cannot_be_kept_is_refused_by_place(refusal, tools, choice, code, param):
    assert refusal({"tools": tools, "tool_choice": choice})[:2] == (code, param)


def test_a_lenient_server_skips_dropped_tools_in_a_choice(job, refusal):
    tools = [function("f"), {"type": "mcp"}, custom("c", format={"type": "grammar"})]
    choice = allowed("required", {"type": "mcp"}, named("custom", "c"), named("function", "f"))
    assert job({"tools": tools, "tool_choice": choice}, lenient_tools=True).forced_tool == "f"
    refused = refusal({"tools": tools, "tool_choice": named("custom", "c")}, lenient_tools=True)
    assert refused[:2] == ("invalid_value", "tool_choice.custom.name")


@contract("chat.tools.parallel")
def test_parallel_calls_can_be_turned_off(job):
    assert [job({"tools": TWO, "parallel_tool_calls": value}).single_call for value in (None, True, False)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"input":"a\\n\\"b\\""}', 'a\n"b"'),
        ('{"input":""}', ""),
        ("{}", ""),
        ('{"text":"a"}', '{"text":"a"}'),
        ('{"input":"a","more":"b"}', "a"),
    ],
)
def test_the_input_of_a_custom_call_is_its_one_text(arguments, given):
    assert input_of(arguments) == given


@contract("chat.tools.custom", "chat.tools.parallel")
def test_calls_go_back_in_the_form_of_their_tool(post):
    calls = [
        GeneratedCall(name="c", arguments='{"input":"x"}'),
        GeneratedCall(name="f", arguments='{"a":1.0}'),
        GeneratedCall(name="malformed_tool_call", arguments='{"error":"x"}'),
    ]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": MIXED}
    answer = msgspec.json.decode(post("/v1/chat/completions", body, FakeEngine(pieces=calls)).body)
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_10000", "type": "custom", "custom": {"name": "c", "input": "x"}},
        {"id": "call_10001", "type": "function", "function": {"name": "f", "arguments": '{"a":1.0}'}},
        {
            "id": "call_10002",
            "type": "function",
            "function": {"name": "malformed_tool_call", "arguments": '{"error":"x"}'},
        },
    ]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    single = post("/v1/chat/completions", {**body, "parallel_tool_calls": False}, FakeEngine(pieces=["Hm", *calls]))
    message = msgspec.json.decode(single.body)["choices"][0]["message"]
    assert (message["content"], [call["type"] for call in message["tool_calls"]]) == ("Hm", ["custom"])
