"""The prompt's form, pinned to the character."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest

from ninfer_scripted.prompt import TEMPLATE


class RaisedError(Exception):
    pass


def render(*messages: dict[str, Any], **variables: Any) -> str:
    def refuse(message: str) -> None:
        raise RaisedError(message)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(TEMPLATE).render(messages=list(messages), **variables)


def turn(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "reasoning_content": None, "tool_calls": None} | more


CALL = {"function": {"name": "f", "arguments": {"city": "Köln", "days": 2, "deep": {"b": [1], "a": None}}}}


def test_thinking_is_on_by_default_and_closed_by_the_template_when_off() -> None:
    opened = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    closed = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render(turn("user", " Hi\n"), add_generation_prompt=True) == opened
    assert render(turn("user", "Hi"), add_generation_prompt=True, enable_thinking=True) == opened
    assert render(turn("user", "Hi"), add_generation_prompt=True, enable_thinking=False) == closed
    assert (
        render(turn("user", [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]))
        == "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_system_turns_stay_where_they_are() -> None:
    assert render(turn("system", "S"), turn("user", "U"), turn("developer", "D"), turn("user", "V")) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
    )


@pytest.mark.parametrize("effort", ["low", "medium", "xhigh"])
def test_an_effort_is_visible_while_thinking(effort: str) -> None:
    text = render(turn("system", "S"), turn("user", "U"), reasoning_effort=effort)
    assert text.startswith(f"<|im_start|>system\nReasoning effort: {effort}.\n\nS<|im_end|>\n")
    assert "effort" not in render(turn("user", "U"), reasoning_effort=effort, enable_thinking=False)


def test_what_the_template_cannot_render_is_refused() -> None:
    with pytest.raises(RaisedError, match="low, medium or xhigh"):
        render(turn("user", "U"), reasoning_effort="high")
    with pytest.raises(RaisedError, match="no messages"):
        render()
    with pytest.raises(RaisedError, match="unknown role: critic"):
        render(turn("critic", "U"))


def test_tools_lead_the_system_turn() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "ö"}}]
    assert render(turn("user", "U"), tools=tools) == (
        '<|im_start|>system\n# Tools\n\n<tools>\n{"type": "function", "function": {"name": "f", "description": "ö"}}\n'
        "</tools>\n\nTo call one, write:\n<tool_call>\n<function=NAME>\n<parameter=NAME>\nVALUE\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    )


def test_calls_and_results_have_the_qwen_form() -> None:
    answer = turn("assistant", "Look.", tool_calls=[CALL, {"function": {"name": "now", "arguments": {}}}])
    text = render(turn("user", "U"), answer, turn("tool", "sunny"), turn("tool", "12:00"), turn("user", "V"))
    assert text == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nLook.\n\n<tool_call>\n<function=f>\n"
        "<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        '<parameter=deep>\n{"b": [1], "a": null}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n"
    )
    bare = render(turn("user", "U"), turn("assistant", "", tool_calls=[CALL]))
    assert "assistant\n<tool_call>\n<function=f>" in bare


def test_reasoning_of_closed_turns_is_kept_unless_it_is_not_to_be() -> None:
    history = (
        turn("user", "U"),
        turn("assistant", "A", reasoning_content="old"),
        turn("user", "V"),
        turn("assistant", "B", reasoning_content="\nnew\n", tool_calls=[CALL]),
        turn("tool", "R"),
    )
    old, new = "<think>\nold\n</think>\n\nA", "<think>\nnew\n</think>\n\nB"
    for variables in ({}, {"preserve_thinking": True}):
        text = render(*history, **variables)
        assert old in text
        assert new in text
    text = render(*history, preserve_thinking=False)
    assert "old" not in text
    assert "<|im_start|>assistant\nA<|im_end|>" in text
    assert new in text
