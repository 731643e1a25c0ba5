"""What a model writes to what clients get: one text, through every split of it into tokens and rounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_core.api import MALFORMED_TOOL_CALL, GeneratedCall, ReasoningSyntax, Tool, ToolReport
from ninfer_core.text.output import OutputSession
from ninfer_core.text.prompt_json import PromptJson
from ninfer_core.text.tag_calls import TagToolSyntax
from ninfer_core.text.tool_reader import ToolReader, ToolReading
from ninfer_core.text.tool_types import ToolTypes

THINK = ReasoningSyntax(open="<think>", close="</think>")
END = 256


class Bytes:
    """A token per byte, and one that ends the turn."""

    size = 257
    control_tokens = {"<end>": END}  # noqa: RUF012
    special_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_with_control = encode

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])


def tool(name: str, /, **properties: object) -> Tool:
    """Parameters by name, each with its type or its whole schema."""
    schemas = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    return Tool(name=name, definition="{}", parameters=msgspec.json.encode({"properties": schemas}).decode())


TOOLS = (
    tool("find", include_body="boolean", name="string", limit="integer", ratio="number", tags="array", where="object"),
    tool("now"),
    Tool(name="free", definition="{}"),
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    finish: str
    reasoning: str
    content: str
    calls: tuple[GeneratedCall, ...]
    report: ToolReport
    marks: tuple[int | None, ...]
    tokens: int


def answer(
    text: str,
    tools: Sequence[Tool] = TOOLS,
    *,
    cuts: Sequence[int] | None = None,
    limit: int | None = None,
    stops: Sequence[str] = (),
    forced: str | None = None,
    single: bool = False,
    thinking: bool = False,
) -> Answer:
    """The answer to ``text`` and a stop token, in rounds that end at ``cuts`` (None: a token each). What streams has to
    add up to what the end says, and nothing that was published may change."""
    reading = ToolReading(syntax=TagToolSyntax(), types=ToolTypes(tools, PromptJson()), forced=forced, single=single)
    session = OutputSession(
        Bytes(),
        stop_ids=frozenset({END}),
        stops=tuple(stops),
        reasoning=THINK if thinking else None,
        in_reasoning=thinking,
        limit=limit or 10_000_000,
        limit_finish="output_limit",
        raw=False,
        tools=reading,
    )
    tokens = [*text.encode(), END]
    bounds = range(len(tokens) + 1) if cuts is None else sorted({0, len(tokens), *(c for c in cuts if c < len(tokens))})
    streamed, calls, marks = {"reasoning": "", "content": ""}, [], []
    for begin, end in pairwise(bounds):
        taken = session.preview(tokens[begin:end])
        session.commit(taken)
        marks += taken.marks
        for channel, piece in taken.deltas:
            assert piece
            assert not calls, "text never follows a call"
            streamed[channel] += piece
        calls += taken.calls
        if taken.finish:
            break
    assert (streamed["reasoning"], streamed["content"]) == (session.reasoning, session.content)
    assert calls == session.calls
    return Answer(
        finish=str(session.finish),
        reasoning=session.reasoning,
        content=session.content,
        calls=tuple(session.calls),
        report=session.tool_report,
        marks=tuple(marks),
        tokens=len(session.token_ids),
    )


def read(text: str, tools: Sequence[Tool] = TOOLS, **options: object) -> Answer:
    """The answer, which is the same token by token, in rounds of several sizes, and in one."""
    size = len(text.encode()) + 2
    alone = answer(text, tools, **options)  # type: ignore[arg-type]
    for step in (2, 3, 5, 7, size):
        assert answer(text, tools, cuts=range(0, size, step), **options) == alone  # type: ignore[arg-type]
    for call in alone.calls:
        assert isinstance(strict(call.arguments), dict)
    return alone


def strict(text: str) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    msgspec.json.decode(text)
    return json.loads(text, parse_constant=refuse)


def call(name: str = "find", /, **values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def made(result: Answer) -> list[tuple[str, str]]:
    return [(one.name, one.arguments) for one in result.calls]


# ---------------------------------------------------------------------- forms

FORMS = {
    "qwen": call(name="x"),
    "qwen-in-one-line": "<tool_call><function=find><parameter=name>x</parameter></function></tool_call>",
    "function-with-a-name": '<function name="find"><parameter name="name">x</parameter></function>',
    "invoke": '<invoke name="find"><parameter name="name">x</parameter></invoke>',
    "param": '<invoke name="find"><param name="name">x</param></invoke>',
    "bare": "<function=find>\n<parameter=name>\nx\n</parameter>\n</function>",
    "container": '<function_calls>\n<invoke name="find">\n<parameter name="name">x</parameter>\n</invoke>\n'
    "</function_calls>",
    "tool-call-around-invoke": '<tool_call><invoke name="find"><param name="name">x</param></invoke></tool_call>',
    "container-around-function": "<function_calls><function=find><param name=\"name\">x</param></function>"
    "</function_calls>",
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.contract("chat.calls.forms")
def test_every_form_of_a_call_is_read(text):
    result = read(f"Let me look.\n\n{text}\n")
    assert made(result) == [("find", '{"name":"x"}')]
    assert (result.content, result.finish) == ("Let me look.", "stop_token")
    assert result.report == ToolReport(marker_seen=True, structured_calls=1)


CROSSED = {
    "function": "<function=find>\n<parameter=name>x</parameter></invoke>",
    "invoke": '<invoke name="find"><param name="name">x</param></function>',
    "parameter": "<function=find><parameter=name>x</param></function>",
    "param": '<function=find><param name="name">x</parameter></function>',
    "container": "<tool_call><function=find></function></function_calls>",
}


@pytest.mark.parametrize("text", CROSSED.values(), ids=CROSSED)
@pytest.mark.contract("chat.calls.closing")
def test_a_tag_is_closed_by_its_own_kind_alone(text):
    result = read(text)
    assert result.report.fallback in ("malformed_structure", "trailing_content")
    assert result.content == ""
    assert made(result)[0][0] == ("find" if text.startswith("<tool_call>") else MALFORMED_TOOL_CALL)


def test_several_calls_of_one_container_and_of_several():
    two = '<function_calls><invoke name="now"></invoke>\n<invoke name="now"></invoke></function_calls>'
    result = read(f"{two}\n{call('now')}\n<function=now></function>")
    assert [name for name, _ in made(result)] == ["now"] * 4
    assert result.report == ToolReport(marker_seen=True, structured_calls=4)


# ---------------------------------------------------------------------- typing

TYPED = {
    "ninfer-138-python-boolean": ("include_body", "True", '"True"', True),
    "boolean": ("include_body", "true", "true", False),
    "null": ("limit", "null", "null", True),
    "integer": ("limit", " 7 ", "7", False),
    "integer-with-a-point": ("limit", "7.0", "7.0", False),
    "fraction-for-integer": ("limit", "7.5", "7.5", True),
    "quoted-number": ("limit", '"7"', '"\\"7\\""', True),
    "unsloth-10845-number-keeps-its-spelling": ("ratio", "1E5", "1E5", False),
    "sglang-34553-thirty-digits": ("ratio", "1234567890" * 3, "1234567890" * 3, False),
    "dspy-10216-object-in-received-order": ("where", '{"b": 1.0, "a": [ 2 ]}', '{"b":1.0,"a":[2]}', False),
    "list-for-object": ("where", "[1]", "[1]", True),
    "string-stays": ("name", '{"a": 1}', '"{\\"a\\": 1}"', False),
    "string-keeps-its-edges": ("name", "  7\n\n", '"  7\\n\\n"', False),
    "undeclared-parameter": ("other", "7", '"7"', False),
    "vllm-55497-nan": ("ratio", "NaN", '"NaN"', True),
    "vllm-55497-minus-infinity": ("ratio", "-Infinity", '"-Infinity"', True),
    "vllm-55495-out-of-range": ("ratio", "1e999", '"1e999"', True),
    "vllm-55495-half-a-pair": ("where", '{"a":"\\ud83d"}', '"{\\"a\\":\\"\\\\ud83d\\"}"', True),
    "vllm-55497-five-thousand-digits": ("ratio", "9" * 5000, '"' + "9" * 5000 + '"', True),
    "member-named-twice": ("where", '{"a":1,"a":2}', '"{\\"a\\":1,\\"a\\":2}"', True),
    "deep-nesting": ("tags", "[" * 5000, '"' + "[" * 5000 + '"', True),
}


@pytest.mark.parametrize(("name", "text", "expected", "mismatched"), TYPED.values(), ids=TYPED)
@pytest.mark.contract("chat.arguments.typed", "chat.arguments.unchecked")
def test_the_declared_type_decides_what_a_value_is(name, text, expected, mismatched):
    result = answer(call(**{name: text}), cuts=[])
    assert made(result) == [("find", f'{{"{name}":{expected}}}')]
    assert result.report.mismatched_arguments == mismatched
    assert strict(result.calls[0].arguments)


UNTYPED = {
    "no-type": {"description": "x"},
    "any-of": {"anyOf": [{"type": "integer"}]},
    "string-among-others": {"type": ["integer", "string"]},
    "unknown-type": {"type": "int"},
    "type-of-a-strange-form": {"type": {"a": 1}},
    "no-schema": {"type": []},
}


@pytest.mark.parametrize("schema", UNTYPED.values(), ids=UNTYPED)
def test_without_an_explicit_type_or_where_it_admits_strings_a_value_is_a_string(schema):
    assert made(answer(call("f", n="5"), [tool("f", n=schema)])) == [("f", '{"n":"5"}')]


def test_a_type_of_several_without_a_string_is_json():
    declared = [tool("f", n={"type": ["integer", "null"]})]
    assert made(answer(call("f", n="5"), declared)) == [("f", '{"n":5}')]
    assert made(answer(call("f", n="null"), declared)) == [("f", '{"n":null}')]


def test_a_tool_without_declared_parameters_takes_strings():
    assert made(read(call("free", b="1", a="x"))) == [("free", '{"b":"1","a":"x"}')]


@pytest.mark.parametrize("text", [call("now"), "<tool_call><function=now></function></tool_call>"])
@pytest.mark.parametrize("thread", ["TRT-LLM-19227", "hermes-agent-83937"])
def test_a_call_without_parameters_has_an_empty_object(text, thread):
    assert made(read(text)) == [("now", "{}")]


def test_empty_text_of_another_type_than_string_is_left_out():
    result = read(call(limit="", name="", tags=" \n"))
    assert made(result) == [("find", '{"name":""}')]
    assert result.report.empty_arguments_omitted == 2


def test_a_parameter_named_again_keeps_its_place_and_its_last_value():
    result = read(call(name="a", limit="1").replace("</function>", "<parameter=name>b</parameter>\n</function>"))
    assert made(result) == [("find", '{"name":"b","limit":1}')]
    assert (result.report.duplicate_parameters_repaired, result.report.fallback) == (1, "none")


def test_members_keep_the_order_and_numbers_the_spelling_the_model_gave_them():
    value = '[{"new":1.0,"old":"é"},{"n":-0,"m":1E5}]'
    result = read(call(tags=value, name="p"))
    assert made(result) == [("find", f'{{"tags":{value},"name":"p"}}')]


# ---------------------------------------------------------------------- values

VALUES = {
    "llama.cpp-24644-closing-tag-before-text": ("a</parameter>b", "a</parameter>b"),
    "llama.cpp-24644-balanced": ("<parameter=x>y</parameter>", "<parameter=x>y</parameter>"),
    "balanced-twice": ("<parameter=x><parameter=y>z</parameter></parameter> t", None),
    "balanced-then-more": ("a <parameter=x>y</parameter>\n<b>", "a <parameter=x>y</parameter>\n<b>"),
    "named-balanced": ('<parameter name="x">y</parameter>.', '<parameter name="x">y</parameter>.'),
    "markup": ("<tool_call>\n<function=now>\n</function>\n</tool_call>", None),
    "other-kind": ('<param name="x">y</param>', None),
    "no-tag": ("<parameter=note=> <parameter> <parameter=\n> </parameters>", None),
    "white-space-kept": ("  indented\n\n\tmore  ", "  indented\n\n\tmore  "),
    "one-line-break-dropped": ("\nx\n", "\nx\n"),
    "windows": ("x\r\ny", "x\r\ny"),
    "empty": ("", ""),
    "unicode": ("é😀\u2028", "é😀\u2028"),
    "angle": ("a < b << c <", "a < b << c <"),
}


@pytest.mark.parametrize(("text", "expected"), VALUES.values(), ids=VALUES)
@pytest.mark.contract("chat.values.markup", "chat.values.closing")
def test_a_string_value_keeps_what_is_markup_elsewhere(text, expected):
    result = read(f"{call(name=text)}\n{call('now')}")
    assert [one.name for one in result.calls] == ["find", "now"]
    assert strict(result.calls[0].arguments) == {"name": text if expected is None else expected}


BROKEN_VALUES = {
    "llama.cpp-24644-unmatched-opener": call(name="a <parameter=x> b"),
    "llama.cpp-24644-closing-tag-before-markup": call(name="a</parameter>\n<b>c</b>"),
    "vllm-55497-no-end-of-tag": "<tool_call>\n<function=find>\n<parameter=ids: [..]\n1\n</parameter>\n"
    "<parameter=name>\nx\n</parameter>\n</function>\n</tool_call>",
    "vllm-55497-line-break-for-a-name": "<tool_call>\n<function=find>\n<parameter=\nx\n</parameter>\n"
    "<parameter=name>\nx\n</parameter>\n</function>\n</tool_call>",
    "vllm-55497-two-equal-signs": "<tool_call>\n<function=find>\n<parameter=note=>\nx\n</parameter>\n"
    "<parameter=name>\nx\n</parameter>\n</function>\n</tool_call>",
    "llama.cpp-20761-json-for-parameters": '<tool_call>\n<function=find>\n{"name": "x"}\n</function>\n</tool_call>',
    "openclaw-61838-parameter-not-closed": "<tool_call>\n<function=find>\n<parameter=name>\nx\n</function>\n</tool_call>",
    "text-after-a-parameter": "<function=find><parameter=name>x</parameter> <!-- --> </function>",
    "no-name": "<function=find><parameter=>x</parameter></function>",
}


@pytest.mark.parametrize("text", BROKEN_VALUES.values(), ids=BROKEN_VALUES)
@pytest.mark.contract("chat.values.unmatched", "chat.markers.recovery")
def test_a_call_that_cannot_be_read_is_told_to_the_model(text):
    result = read(f"Look.\n{text}\n")
    assert [one.name for one in result.calls] == [MALFORMED_TOOL_CALL]
    assert (result.content, result.finish) == ("Look.", "stop_token")
    arguments = strict(result.calls[0].arguments)
    assert arguments["tool"] == "find"
    assert "again" in arguments["error"]
    report = result.report
    assert (report.fallback, report.malformed_call_reported, report.recovered) == ("malformed_structure", True, False)
    # no key may hold markup
    assert set(arguments) == {"tool", "error"}


def test_complete_calls_before_one_that_cannot_be_read_are_kept():
    result = read(f"{call('now')}\n{call(name='a')}\n<tool_call>\n<function=find>\n<parameter=name>\nx and then\n")
    assert [one.name for one in result.calls] == ["now", "find", MALFORMED_TOOL_CALL]
    report = result.report
    assert (report.recovered, report.recovered_call_count, report.structured_calls) == (True, 2, 3)


def test_complete_calls_of_a_container_that_is_not_closed_are_kept():
    text = '<function_calls><invoke name="now"></invoke><invoke name="find"><param name="name">x</param></invoke>'
    result = read(text)
    assert made(result) == [("now", "{}"), ("find", '{"name":"x"}')]
    assert (result.report.fallback, result.report.recovered) == ("malformed_structure", True)


def test_text_after_the_calls_is_dropped():
    result = read(f"{call('now')}\nThat was it.")
    assert (made(result), result.content) == ([("now", "{}")], "")
    assert result.report == ToolReport(
        marker_seen=True,
        structured_calls=1,
        fallback="trailing_content",
        recovered=True,
        recovered_call_count=1,
        trailing_content_dropped=True,
    )


# ---------------------------------------------------------------------- quoted markup

A, B = call(name="A"), call(name="B")
QUOTED = {
    "vllm-22975": (f"Use `<tool_call>` like this. {A}{B}", "Use `<tool_call>` like this.", ["A", "B"]),
    "vllm-mlx-55": (f"First `<function=find>` and then:\n{A}", "First `<function=find>` and then:", ["A"]),
    "whole-example-first": (f"Like `<tool_call>`: {A} so. Now:\n{B}", f"Like `<tool_call>`: {A} so. Now:", ["B"]),
    "unfinished-example": (
        f"<tool_call>\n<function=find>\nand so on. {A}",
        "<tool_call>\n<function=find>\nand so on.",
        ["A"],
    ),
    "empty-container": (f"<tool_call></tool_call> is empty. {A}", "<tool_call></tool_call> is empty.", ["A"]),
    "begun-markers": (f"<tool <func <invoke {A}", "<tool <func <invoke", ["A"]),
    "markers-in-a-row": (f"<tool_call><tool_call>{A}", "<tool_call><tool_call>", ["A"]),
}


@pytest.mark.parametrize(("text", "content", "names"), QUOTED.values(), ids=QUOTED)
@pytest.mark.contract("chat.markers.order")
def test_quoted_markup_before_the_calls_stays_content(text, content, names):
    result = read(text)
    assert result.content == content
    assert [strict(one.arguments) for one in result.calls] == [{"name": name} for name in names]
    assert result.report.fallback == "none"


PROSE = {
    "vllm-22975-forty-bare-markers": "<tool_call> " * 40,
    "a-marker": "The tag is <tool_call>.",
    "at-the-end": "The tag is <tool_call>",
    "begun-at-the-end": "The tag is <tool_c",
    "closing": "</tool_call></function>",
    "empty-container": "<tool_call>\n</tool_call>",
    "no-name": "<function=>x</function>",
    "strange-name": "<function=a b>x</function>",
    "white-space": " \n\t\n",
    "white-space-behind": "OK.\n\n",
    "name-cut-off": "see <function=fin",
    "long-name": f"<function={'f' * 5000}>",
}


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_markup_that_opens_no_call_is_text_to_the_byte(text):
    result = read(text)
    assert (result.content, result.calls) == (text, ())


REASONS = {
    "The tag is <tool_call>.": "malformed_structure",
    "<function=a b>x</function>": "invalid_tool_name",
    "<function=>x</function>": "malformed_structure",
    "<tool_call>\n<function=other>\n</function>\n</tool_call>": "undeclared_tool",
    "plain": "none",
}


@pytest.mark.parametrize(("text", "reason"), REASONS.items(), ids=REASONS.values())
def test_the_report_says_why_markup_was_kept_as_text(text, reason):
    result = read(text)
    assert (result.content, result.report.fallback) == (text, reason)
    assert result.report.marker_seen == (reason != "none")


def test_a_call_to_an_undeclared_tool_is_text_and_so_is_what_it_quotes():
    other = call("other", text=call("now"))
    result = read(f"x\n{other}\n")
    assert (result.content, result.calls) == (f"x\n{other}\n", ())
    assert result.report.fallback == "undeclared_tool"


def test_an_undeclared_call_does_not_hide_a_declared_one_after_it():
    result = read(f"{call('other')}\n{call('now')}")
    assert (result.content, made(result)) == (call("other"), [("now", "{}")])


def test_an_undeclared_call_after_a_complete_one_is_dropped():
    result = read(f"{call('now')}\n{call('other')}")
    assert (result.content, made(result)) == ("", [("now", "{}")])
    assert (result.report.fallback, result.report.recovered) == ("undeclared_tool", True)


@pytest.mark.contract("chat.markers.sixteen")
def test_only_sixteen_markers_are_tried():
    for quoted, expected in ((15, 1), (16, 0)):
        text = "`<tool_call>` " * quoted + call("now")
        result = read(text)
        assert len(result.calls) == expected
        assert result.content == ("`<tool_call>` " * quoted).strip() if expected else text


# ---------------------------------------------------------------------- streams


def streamed(text: str, **options: object) -> list[tuple[str, object]]:
    """What is published after each byte."""
    reading = ToolReading(syntax=TagToolSyntax(), types=ToolTypes(TOOLS, PromptJson()), **options)  # type: ignore[arg-type]
    session = OutputSession(
        Bytes(),
        stop_ids=frozenset({END}),
        stops=(),
        reasoning=None,
        in_reasoning=False,
        limit=10**6,
        limit_finish="output_limit",
        raw=False,
        tools=reading,
    )
    out: list[tuple[str, object]] = []
    for token in [*text.encode(), END]:
        taken = session.preview([token])
        session.commit(taken)
        out.append(("".join(piece for _, piece in taken.deltas), taken.calls))
    return out


def test_content_streams_at_once_but_for_white_space_and_begun_markers():
    text = "a b <b <tool_x y"
    pieces = [piece for piece, _ in streamed(text)]
    shown = ["".join(pieces[: at + 1]) for at in range(len(text))]
    assert shown[: len("a b <b")] == ["a", "a", "a b", "a b", "a b", "a b <b"]
    assert shown[text.index("x") - 1] == "a b <b"
    assert shown[text.index("x") :] == ["a b <b <tool_x", "a b <b <tool_x", text]


def test_a_marker_that_opens_no_call_is_released_as_soon_as_that_is_known():
    text = "Use <tool_call>` there"
    pieces = [text for text, _ in streamed(text)]
    assert "".join(pieces[: text.index("`")]) == "Use"
    assert "".join(pieces[: text.index("`") + 1]) == "Use <tool_call>`"


def test_a_complete_call_at_the_first_marker_is_published_when_its_element_closes():
    text = f"{call('now')}\n{call(name='x')}\n"
    out = streamed(text)
    at = [i for i, (_, calls) in enumerate(out) if calls]
    assert at == [len(call("now")) - 1, len(text) - 2]


def test_calls_behind_quoted_markup_wait_for_the_end():
    out = streamed(f"`<tool_call>` {call('now')}\n")
    assert [i for i, (_, calls) in enumerate(out) if calls] == [len(out) - 1]


def test_one_call_is_kept_where_only_one_is_wanted():
    text = f"{call('now')}\n{call(name='x')}\n<tool_call>\n<function=find>\n<parameter=name>\nx"
    result = read(text, single=True)
    assert (made(result), result.report.structured_calls) == ([("now", "{}")], 1)
    held = read(f"`<tool_call>` {call('now')}\n{call(name='x')}", single=True)
    assert made(held) == [("now", "{}")]


# ---------------------------------------------------------------------- limits and stop strings


@pytest.mark.parametrize("thread", ["vllm-37937", "vllm-45256"])
def test_a_limit_anywhere_in_a_call_ends_cleanly(thread):
    text = f"Look.\n\n{call(name='a b', limit='7')}\n{call('now')}"
    for limit in range(1, len(text), 2):
        result = answer(text, limit=limit)
        assert result == answer(text, limit=limit, cuts=range(0, len(text), 4)) == answer(text, limit=limit, cuts=[])
        assert (result.finish, result.tokens) == ("output_limit", limit)
        assert text.startswith(result.content)
        for one in result.calls:
            assert isinstance(strict(one.arguments), dict)
            assert one.name != "find" or one.arguments == '{"name":"a b","limit":7}'


def test_a_call_cut_off_by_the_limit_says_so():
    result = read(call(name="a long text"), limit=60)
    assert [one.name for one in result.calls] == [MALFORMED_TOOL_CALL]
    assert "length limit" in result.calls[0].arguments
    assert result.finish == "output_limit"


def test_a_stop_string_acts_on_markup_too():
    result = read(f"Look. {call('now')}", stops=["</tool_call>"])
    assert (result.finish, result.content, made(result)) == ("stop_string", "Look.", [("now", "{}")])
    result = read(call(name="one END two"), stops=["END"])
    assert (result.finish, [one.name for one in result.calls]) == ("stop_string", [MALFORMED_TOOL_CALL])


@pytest.mark.parametrize("thread", ["llama.cpp-9867", "wllama-263"])
@pytest.mark.parametrize("limit", [None, 7], ids=["stop-token", "limit"])
def test_everything_held_is_published_at_the_end(thread, limit):
    assert read("answer\n", stops=["\n\nQ"], limit=limit).content == "answer\n"
    held = "answer\n<tool_call>\n<function=fi"
    assert read(held, stops=["\n\nQ"], limit=limit and len(held)).content == held


@pytest.mark.parametrize("thread", ["mlx-vlm-1076", "ik_llama-780", "llama.cpp-28926"])
def test_a_character_split_over_rounds_is_whole_in_text_and_arguments(thread):
    result = read(f"😀 å {call(name='😀 å')}")
    assert (result.content, made(result)) == ("😀 å", [("find", '{"name":"😀 å"}')])


def test_markup_in_reasoning_is_reasoning():
    result = read(f"I call {call('now')}\n</think>\n\n{call('now')}", thinking=True)
    assert (result.reasoning, result.content) == (f"I call {call('now')}", "")
    assert made(result) == [("now", "{}")]


@pytest.mark.parametrize("thread", ["vllm-51641", "vllm-53066"])
def test_end_of_thought_close_and_call_may_share_a_round(thread):
    text = f"so</think>\n\nHello\n{call('now')}"
    result = read(text, thinking=True, stops=["Question:"])
    assert (result.reasoning, result.content, made(result)) == ("so", "Hello", [("now", "{}")])
    hit = read(f"a Question: b</think>\n{call('now')}", thinking=True, stops=["Question:"])
    assert (hit.finish, hit.reasoning, hit.content, hit.calls) == ("stop_string", "a ", "", ())


@pytest.mark.parametrize("thread", ["RapidMLX-575", "FastFlowLM-739"])
def test_a_thought_that_is_cut_off_stays_in_its_channel(thread):
    result = read("still <tool_call> thinking", thinking=True, limit=20)
    assert (result.reasoning, result.content, result.calls) == ("still <tool_call> th", "", ())


# ---------------------------------------------------------------------- forced calls


def forced(rest: str, **options: object) -> Answer:
    return read(rest, forced="find", **options)


def test_a_forced_call_begins_in_the_prompt():
    result = forced("<parameter=name>\nx\n</parameter>\n</function>\n</tool_call>")
    assert (made(result), result.content) == ([("find", '{"name":"x"}')], "")
    assert result.report == ToolReport(marker_seen=True, structured_calls=1)


@pytest.mark.parametrize("end", ["", "</func", "</function>", "</function>\n</tool_c", " \n"])
def test_the_closing_tags_of_a_forced_call_are_supplied(end):
    result = forced(f"<parameter=name>\nx\n</parameter>\n{end}")
    assert made(result) == [("find", '{"name":"x"}')]
    assert (result.report.forced_call_closed, result.report.fallback) == (True, "none")


def test_a_forced_call_without_anything_is_a_call_without_arguments():
    assert made(forced("")) == [("find", "{}")]


def test_a_forced_call_that_cannot_be_read_is_malformed():
    for text, limit in (("<parameter=name>\nx", None), ("Sorry, no.", None), ("<parameter=name>x</parameter>", 29)):
        result = forced(text, limit=limit)
        assert [one.name for one in result.calls] == [MALFORMED_TOOL_CALL]
        assert not result.report.forced_call_closed


def test_further_calls_may_follow_a_forced_one():
    result = forced(f"</function>\n</tool_call>\n{call('now')}")
    assert [one.name for one in result.calls] == ["find", "now"]


# ---------------------------------------------------------------------- properties

WORDS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=find>", "<function=other>", "<function=", "</function>",
        "<parameter=name>", "<parameter=limit>", "</parameter>", "<parameter=", '<invoke name="now">', "</invoke>",
        "<function_calls>", "</function_calls>", '<param name="name">', "</param>", "\n", " ", "x", "é", "😀", "<", ">",
        "`", "7", "</think>", "stop", call("now"), call(name="v"),
    ]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=12)


@given(TEXTS, CUTS, CUTS, st.booleans(), st.booleans(), st.sampled_from([(), ("stop",), ("\n\n", "</"), ("x<",)]))
@settings(max_examples=120)
@example("<tool_call><function=find>\n<parameter=name>x</parameter></function>", [3], [], False, True, ())
def test_any_cut_of_any_text_gives_the_same_channels_and_calls(text, cuts, others, single, thinking, stops):
    options = {"single": single, "thinking": thinking, "stops": stops}
    results = [answer(text, cuts=one, **options) for one in (None, cuts, others, [])]
    assert all(result == results[0] for result in results)


@given(TEXTS, CUTS, st.integers(1, 120), st.sampled_from([None, "find"]))
@settings(max_examples=80)
def test_any_cut_gives_the_same_at_any_limit(text, cuts, limit, name):
    results = [answer(text, cuts=one, limit=limit, forced=name) for one in (None, cuts, [])]
    assert all(result == results[0] for result in results)


@given(TEXTS)
def test_without_calls_not_a_byte_is_lost_and_arguments_are_always_objects(text):
    result = answer(text, cuts=[])
    if not result.calls:
        assert result.content == text
    assert text.startswith(result.content)
    for one in result.calls:
        arguments = strict(one.arguments)
        assert isinstance(arguments, dict)
        assert one.name in (MALFORMED_TOOL_CALL, "find", "now")
        assert not any("<" in key or "\n" in key for key in arguments)


@given(st.dictionaries(st.sampled_from(["name", "other"]), st.text(max_size=12)))
@settings(max_examples=50)
def test_values_without_closing_tags_come_back_as_written(values):
    result = answer(call(**values), cuts=[])
    assert len(result.calls) == 1
    assert strict(result.calls[0].arguments) == values


HOSTILE = {
    "markers": lambda n: "<tool_call>" * n,
    "open-calls": lambda n: "<tool_call><function=find>" * n,
    "nested-parameters": lambda n: "<tool_call><function=find>" + "<parameter=name>" * n,
    "closing-tags": lambda n: "<function=find><parameter=name>" + "</parameter>x" * n,
    "white-space-in-a-call": lambda n: "<function=find><parameter=name></parameter>" + " \n " * n,
    "white-space-in-content": lambda n: "x" + " \n " * n,
    "angles": lambda n: "<function=find><parameter=name>" + "<<<" * n,
    "begun-parameters": lambda n: "<function=find><parameter=name>" + ("<parameter=" + "a" * 200) * (n // 40),
    "whole-calls": lambda n: call("now") * (n // 8),
    "quoted-calls": lambda n: "`<tool_call>` " + call("now") * (n // 8) + " x",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_answers_cost_work_in_proportion(text):
    """Steps of the interpreter are counted, not seconds."""
    half, whole = (steps(text(n)) for n in (150, 300))
    assert whole < 2.5 * half + 5_000


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_step_rereads_no_more_than_a_tag_however_much_is_held(text):
    """And what a preview copies does not grow: text is held in chains, which copies share."""
    reader = ToolReader(ToolReading(syntax=TagToolSyntax(), types=ToolTypes(TOOLS, PromptJson())))
    said = text(4_000)
    for at in range(0, len(said), 8):
        reader = reader.copy()
        reader.feed(said[at : at + 8])
        assert flat_size(reader) < 1_000
    reader.finish(cut=False)


def flat_size(reader: ToolReader) -> int:
    """Characters and items of what a copy does not share."""
    parts = [reader, reader._region] if reader._region is not None else [reader]
    held = [value for part in parts for value in vars(part).values()]
    return sum(len(value) for value in held if isinstance(value, (str, list, dict)))


def steps(text: str) -> int:
    count = 0

    def tick(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += 1
        return tick

    before = sys.gettrace()
    sys.settrace(tick)  # type: ignore[arg-type]
    try:
        answer(text, cuts=range(0, len(text.encode()), 16))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.contract("logprobs.channel")
def test_records_of_markup_keep_their_place_in_the_answers_text():
    text = f"Look.\n{call('now')}"
    result = read(text)
    assert [mark for mark in result.marks if mark is not None] == list(range(len(text)))
    assert replace(result, marks=()) == replace(read(text), marks=())
