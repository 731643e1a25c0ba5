"""What a model writes to what clients get."""

from __future__ import annotations

import pytest
from tool_answers import answer, call, made, read, strict, tool

from ninfer_core.api import MALFORMED_TOOL_CALL, ToolReport

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
    "openclaw-61838-parameter-not-closed": "<tool_call><function=find>\n<parameter=name>\nx\n</function></tool_call>",
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
