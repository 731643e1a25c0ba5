"""Functions of a Response: definitions, namespaces, choices, and what a lenient server drops."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninfer_core.api import MALFORMED_TOOL_CALL, GeneratedCall
from ninfer_core.testing import FakeEngine

contract = pytest.mark.contract


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def namespace(name: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **more}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


MANY = [
    function("f"),
    namespace("mcp__x", function("f"), function("g"), description="X."),
    namespace("mcp__y", function("f")),
]
NAMES = ["f", "mcp__x.f", "mcp__x.g", "mcp__y.f"]


def calling(*calls: tuple[str, str]) -> FakeEngine:
    return FakeEngine(pieces=["Hm. ", *(GeneratedCall(name=name, arguments=text) for name, text in calls)])


@contract("responses.tools.direct", "responses.tools.order")
def test_a_definition_reaches_the_prompt_as_it_was_received(responses):
    schema = b'{"type":"object", "properties":{"z":{"default":1.0},"a":{"const":1E5}}}'
    tool = (
        b'{"strict":false, "parameters":%s ,"type":"function","name":"f","description":"\xc3\xa9\\u00e9","x":1}'
        % schema
    )
    server = responses()
    body = b'{"model":"fake","input":"hi","tools":[%s]}' % tool
    answer = server.ask("POST", "", body)
    (made,) = server.engine.jobs[-1].tools
    shown = f'"parameters": {schema.decode()}, "name": "f", "description": "é\\u00e9"'
    assert made.definition == f'{{"type": "function", "function": {{{shown}}}}}'
    assert (made.name, made.parameters, made.place) == ("f", schema.decode(), "tools[0]")
    # the Response repeats the declaration to the letter
    assert tool in answer.body


def test_a_function_may_have_no_parameters_and_no_description(responses):
    (tool,) = responses().job(tools=[function("f", parameters=None, description=None, strict=None)]).tools
    assert (tool.definition, tool.parameters) == ('{"type": "function", "function": {"name": "f"}}', None)
    (tool,) = responses().job(tools=[function("f", parameters={})]).tools
    assert tool.parameters == "{}"


@contract("responses.namespace.identity")
def test_functions_of_namespaces_have_names_of_their_own(responses):
    job = responses().job(tools=MANY)
    assert [tool.name for tool in job.tools] == NAMES
    assert [tool.place for tool in job.tools] == [
        "tools[0]",
        "tools[1].tools[0]",
        "tools[1].tools[1]",
        "tools[2].tools[0]",
    ]
    functions = [msgspec.json.decode(tool.definition)["function"] for tool in job.tools]
    assert functions == [
        {"name": "f"},
        {"name": "mcp__x.f", "description": "X."},
        {"name": "mcp__x.g"},
        {"name": "mcp__y.f"},
    ]


def test_a_namespaces_description_is_shown_once_before_that_of_its_first_function(responses):
    tools = [namespace("n", function("f", description="F."), function("g", description="G."), description="N.")]
    shown = [
        msgspec.json.decode(tool.definition)["function"]["description"] for tool in responses().job(tools=tools).tools
    ]
    assert shown == ["N.\n\nF.", "G."]
    choice = allowed("auto", {"type": "function", "name": "g", "namespace": "n"})
    (only,) = responses().job(tools=tools, tool_choice=choice).tools
    assert msgspec.json.decode(only.definition)["function"]["description"] == "N.\n\nG."


@contract("responses.namespace.restored", "responses.calls.ids", "responses.output.calls")
def test_a_call_has_its_namespace_again(responses):
    engine = calling(("mcp__x.f", '{"a": 1.0}'), ("f", "{}"), (MALFORMED_TOOL_CALL, '{"error": "x"}'))
    server = responses(engine)
    message, *calls = server.create(input="hi", tools=MANY)["output"]
    assert message["content"][0]["text"] == "Hm. "
    assert calls == [
        {
            "type": "function_call",
            "id": "fc_1_3",
            "status": "completed",
            "call_id": "call_1_4",
            "namespace": "mcp__x",
            "name": "f",
            "arguments": '{"a": 1.0}',
        },
        {
            "type": "function_call",
            "id": "fc_1_5",
            "status": "completed",
            "call_id": "call_1_6",
            "name": "f",
            "arguments": "{}",
        },
        {
            "type": "function_call",
            "id": "fc_1_7",
            "status": "completed",
            "call_id": "call_1_8",
            "name": "malformed_tool_call",
            "arguments": '{"error": "x"}',
        },
    ]


@contract("responses.namespace.replayed", "responses.calls.loop")
def test_a_replayed_call_is_the_call_that_was_made(responses):
    server = responses(calling(("mcp__x.f", '{"a": 1E5}')))
    output = server.create(input="hi", tools=MANY, store=False)["output"]
    result = {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "42"}
    job = server.job(input=[{"role": "user", "content": "hi"}, *output, result], tools=MANY)
    assert [message.role for message in job.messages] == ["user", "assistant", "tool"]
    (made,) = job.messages[1].tool_calls
    assert (made.name, made.arguments, made.id) == ("mcp__x.f", '{"a": 1E5}', output[1]["call_id"])


@contract("responses.choice.auto-none")
def test_auto_offers_all_and_none_offers_nothing(responses):
    assert [tool.name for tool in responses().job(tools=MANY, tool_choice="auto").tools] == NAMES
    assert responses().job(tools=MANY, tool_choice="none").tools == ()


@contract(
    "responses.choice.named", "responses.choice.required-one", "responses.choice.allowed", "responses.choice.forced"
)
@pytest.mark.parametrize(
    ("tools", "choice", "offered", "forced"),
    [
        (MANY, {"type": "function", "name": "f"}, NAMES, "f"),
        (MANY, {"type": "function", "name": "f", "namespace": "mcp__y"}, NAMES, "mcp__y.f"),
        ([function("f")], "required", ["f"], "f"),
        (
            MANY,
            allowed(
                "auto",
                {"type": "function", "name": "g", "namespace": "mcp__x"},
                {"type": "function", "name": "f"},
            ),
            ["f", "mcp__x.g"],
            None,
        ),
        (MANY, allowed("required", {"type": "function", "name": "g", "namespace": "mcp__x"}), ["mcp__x.g"], "mcp__x.g"),
        (MANY, allowed("auto"), [], None),
    ],
    ids=["named", "named-in-namespace", "required", "allowed", "allowed-required", "allowed-nothing"],
)
def test_a_choice_narrows_or_forces(responses, tools, choice, offered, forced):
    job = responses().job(tools=tools, tool_choice=choice)
    assert ([tool.name for tool in job.tools], job.forced_tool) == (offered, forced)


@contract("responses.choice.required-several", "responses.choice.refused")
@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ("required", "tool_choice_not_supported", "tool_choice"),
        ("any", "invalid_value", "tool_choice"),
        (5, "invalid_type", "tool_choice"),
        ({}, "missing_required_parameter", "tool_choice.type"),
        ({"type": "function"}, "missing_required_parameter", "tool_choice.name"),
        ({"type": "function", "name": "nope"}, "invalid_value", "tool_choice.name"),
        ({"type": "function", "name": "g"}, "invalid_value", "tool_choice.name"),
        ({"type": "function", "name": "f", "namespace": "mcp__z"}, "invalid_value", "tool_choice.name"),
        ({"type": "web_search_preview"}, "tool_choice_not_supported", "tool_choice.type"),
        ({"type": "custom", "name": "f"}, "tool_choice_not_supported", "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice_not_supported", "tool_choice.type"),
        ({"type": "allowed_tools", "mode": "some", "tools": []}, "invalid_value", "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "missing_required_parameter", "tool_choice.tools"),
        (allowed("required"), "invalid_value", "tool_choice.mode"),
        (
            allowed("required", function("f"), {**function("f"), "namespace": "mcp__x"}),
            "tool_choice_not_supported",
            "tool_choice.mode",
        ),
        (allowed("auto", {"type": "mcp"}), "tool_choice_not_supported", "tool_choice.tools[0].type"),
        (allowed("auto", function("f"), function("nope")), "invalid_value", "tool_choice.tools[1].name"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_choice_that_cannot_be_honoured_is_refused(responses, choice, code, param):
    status, *found, message = responses().refusal(input="hi", tools=MANY, tool_choice=choice)
    assert (status, *found) == (400, code, param)
    assert f"'{param}'" in message


def test_a_call_cannot_be_asked_for_without_tools(responses):
    assert responses().refusal(input="hi", tool_choice="required")[:3] == (400, "invalid_value", "tool_choice")


@contract("responses.parallel")
def test_one_call_alone_cannot_be_promised(responses):
    refused = responses().refusal(input="hi", tools=MANY, parallel_tool_calls=False)
    assert refused[:3] == (400, "parallel_tool_calls_not_supported", "parallel_tool_calls")
    for choice in ("none", allowed("auto")):
        made = responses().create(input="hi", tools=MANY, parallel_tool_calls=False, tool_choice=choice)
        assert made["parallel_tool_calls"] is False
    assert responses().job(tools=MANY, parallel_tool_calls=True).single_call is False


def test_a_lenient_server_keeps_the_first_call_where_one_is_wanted(responses):
    server = responses(calling(("f", "{}"), ("mcp__x.g", "{}")), lenient_tools=True)
    made = server.create(input="hi", tools=MANY, parallel_tool_calls=False)
    assert [item["name"] for item in made["output"][1:]] == ["f"]
    assert made["parallel_tool_calls"] is False


@contract("responses.tools.refused", "responses.refused.value")
@pytest.mark.parametrize(
    ("tool", "code", "place"),
    [
        ({"type": "web_search"}, "tool_type_not_supported", ".type"),
        ({"type": "mcp", "server_label": "x", "server_url": "https://x"}, "tool_type_not_supported", ".type"),
        ({"type": "custom", "name": "patch"}, "tool_type_not_supported", ".type"),
        ({"type": "file_search", "vector_store_ids": []}, "tool_type_not_supported", ".type"),
        ({"type": "tool_search"}, "tool_type_not_supported", ".type"),
        (function("f", strict=True), "strict_not_supported", ".strict"),
        (function("f", defer_loading=True), "defer_loading_not_supported", ".defer_loading"),
        (function("f", output_schema={}), "output_schema_not_supported", ".output_schema"),
        (function("f", allowed_callers=["programmatic"]), "allowed_callers_not_supported", ".allowed_callers"),
        (function("f", allowed_callers=[]), "allowed_callers_not_supported", ".allowed_callers"),
        (function("f" * 129), "invalid_value", ".name"),
        (function("a b"), "invalid_value", ".name"),
        (function(""), "invalid_value", ".name"),
        (function(MALFORMED_TOOL_CALL), "invalid_value", ".name"),
        (function("f", parameters=[]), "invalid_type", ".parameters"),
        (function("f", description=5), "invalid_type", ".description"),
        ({"type": "function"}, "missing_required_parameter", ".name"),
        ({"name": "f"}, "missing_required_parameter", ".type"),
        ({"type": "function", "function": {"name": "f"}}, "missing_required_parameter", ".name"),
        ("f", "invalid_type", ""),
        (namespace("a.b"), "invalid_value", ".name"),
        (namespace("n" * 65), "invalid_value", ".name"),
        ({"type": "namespace", "name": "n"}, "missing_required_parameter", ".tools"),
        (namespace("n", function("f", strict=True)), "strict_not_supported", ".tools[0].strict"),
        (namespace("n", function("f"), function("f")), "invalid_value", ".tools[1].name"),
        (namespace("n", function("f"), {"type": "custom", "name": "c"}), "tool_type_not_supported", ".tools[1].type"),
        (namespace("n", function("f", defer_loading=True)), "defer_loading_not_supported", ".tools[0].defer_loading"),
        (namespace("n", namespace("m")), "tool_type_not_supported", ".tools[0].type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_definition_that_cannot_be_honoured_is_refused_by_place(responses, tool, code, place):
    status, *found, message = responses().refusal(input="hi", tools=[function("first"), tool])
    assert (status, *found) == (400, code, f"tools[1]{place}")
    assert f"'tools[1]{place}" in message


def test_neutral_controls_of_a_definition_pass(responses):
    tool = function("f", defer_loading=False, allowed_callers=["direct"], output_schema=None, strict=False)
    assert [one.name for one in responses().job(tools=[tool]).tools] == ["f"]
    assert responses().refusal(input="hi", tools=[tool, tool])[:3] == (400, "invalid_value", "tools[1].name")


def test_two_definitions_that_would_be_one_to_the_model_are_refused(responses):
    tools = [function("a.b"), namespace("a", function("b"))]
    assert responses().refusal(input="hi", tools=tools)[:3] == (400, "invalid_value", "tools[1].tools[0].name")


@contract("http.lenient-tools")
def test_a_lenient_server_drops_what_it_cannot_honour_and_says_so(responses):
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        function("later", defer_loading=True),
        namespace("n", function("f"), {"type": "custom", "name": "c"}),
        function("g"),
        {"type": "mcp", "server_label": "x", "name": "ä\nb"},
    ]
    choice = allowed("auto", {"type": "web_search"}, function("later"), function("g"))
    server = responses(lenient_tools=True)
    for path in ("", "/input_tokens"):
        body = {"model": "fake", "input": "hi", "tools": tools}
        answer = server.ask("POST", path, body)
        assert answer.headers["x-ninfer-dropped-tools"] == "web_search, apply_patch, later, ??b, c"
    assert [tool.name for tool in server.engine.jobs[-1].tools] == ["n.f", "g"]
    streamed = server.ask("POST", "", {**body, "stream": True, "tool_choice": choice})
    assert "x-ninfer-dropped-tools" in streamed.headers
    assert [tool.name for tool in server.engine.jobs[-1].tools] == ["g"]
    assert [tool["type"] for tool in server.create(input="hi", tools=tools)["tools"]] == ["namespace", "function"]
    assert "x-ninfer-dropped-tools" not in server.ask("POST", "", {**body, "tools": [function("g")]}).headers
    # a malformed or unconstrained definition is not a matter of leniency
    assert server.refusal(input="hi", tools=[function("a b")])[1] == "invalid_value"
    assert server.refusal(input="hi", tools=[function("f", strict=True)])[1] == "strict_not_supported"
