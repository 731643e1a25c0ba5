"""What is published when, what ends an answer, and that neither the cut of a text nor a hostile one matters."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tool_answers import END, TOOLS, Answer, Bytes, answer, call, made, read, strict

from ninfer_core.api import MALFORMED_TOOL_CALL, ToolReport
from ninfer_core.text.output import OutputSession
from ninfer_core.text.prompt_json import PromptJson
from ninfer_core.text.tag_calls import TagToolSyntax
from ninfer_core.text.tool_reader import ToolReader, ToolReading
from ninfer_core.text.tool_types import ToolTypes

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
