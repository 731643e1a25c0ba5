import dataclasses

import pytest

from ninfer_core.api import ApiError, ChatJob, Message, OptionError, Part, PromptFormat
from ninfer_core.text.modes import EFFORTS, nearest_effort
from ninfer_core.text.prompt import PromptBuilder

SHOW = (
    "{{ [enable_thinking is defined and [enable_thinking], reasoning_effort | default('-'), "
    "preserve_thinking is defined and [preserve_thinking], x | default('-')] | tojson }}"
)


def shown(qwen: PromptFormat, template: str = SHOW, **fields: object) -> str:
    names = ("default_thinking", "default_effort", "default_preserve_thinking")
    options = {name: fields.pop(name, None) for name in names}
    prompts = PromptBuilder(qwen, **options, template_override=template)
    return prompts.render(ChatJob(messages=(Message(role="user", content=(Part(text="hi"),)),), **fields))


CASES = [
    ({}, '[false, "-", false, "-"]'),
    ({"default_thinking": False}, '[[false], "-", false, "-"]'),
    ({"default_thinking": False, "thinking": True}, '[[true], "-", false, "-"]'),
    ({"default_thinking": False, "effort": "high"}, '[[true], "high", false, "-"]'),
    ({"thinking": False, "effort": "high"}, '[[false], "-", false, "-"]'),
    ({"effort": "none"}, '[[false], "-", false, "-"]'),
    ({"default_effort": "low"}, '[false, "low", false, "-"]'),
    ({"default_effort": "low", "effort": "max"}, '[false, "max", false, "-"]'),
    ({"default_effort": "low", "thinking": False}, '[[false], "-", false, "-"]'),
    ({"default_effort": "none"}, '[[false], "-", false, "-"]'),
    ({"default_effort": "none", "thinking": True}, '[[true], "-", false, "-"]'),
    ({"default_preserve_thinking": True}, '[false, "-", [true], "-"]'),
    ({"default_preserve_thinking": True, "preserve_thinking": False}, '[false, "-", [false], "-"]'),
    ({"template_kwargs": {"enable_thinking": False, "x": None}}, '[[false], "-", false, null]'),
    ({"template_kwargs": {"enable_thinking": True}, "thinking": True}, '[[true], "-", false, "-"]'),
    ({"template_kwargs": {"enable_thinking": None, "reasoning_effort": None}}, '[false, "-", false, "-"]'),
    ({"template_kwargs": {"reasoning_effort": "low", "x": {"a": [1]}}}, '[false, "low", false, {"a": [1]}]'),
]


@pytest.mark.parametrize(("fields", "expected"), CASES, ids=[str(fields) for fields, _ in CASES])
@pytest.mark.contract("chat.preserve", "chat.effort.default")
def test_the_request_goes_before_the_server_and_the_server_before_the_template(qwen, fields, expected):
    assert shown(qwen, **fields) == expected


REFUSED = [
    ({"template_kwargs": {"enable_thinking": True}, "thinking": False}, "chat_template_kwargs.enable_thinking"),
    ({"template_kwargs": {"reasoning_effort": "low"}, "effort": "max"}, "chat_template_kwargs.reasoning_effort"),
    ({"template_kwargs": {"preserve_thinking": 1}}, "chat_template_kwargs.preserve_thinking"),
    ({"template_kwargs": {"reasoning_effort": "utmost"}}, "reasoning_effort"),
    ({"thinking": True, "effort": "none"}, "reasoning_effort"),
    ({"template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"template_kwargs": {"tools": None}}, "chat_template_kwargs.tools"),
    ({"template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
    ({"template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
    ({"template_kwargs": {"raise_exception": "x"}}, "chat_template_kwargs.raise_exception"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
@pytest.mark.contract("chat.kwargs.agree", "chat.kwargs.reserved")
def test_contradictions_and_reserved_variables_are_refused_by_place(qwen, fields, param):
    with pytest.raises(ApiError) as caught:
        shown(qwen, **fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_value", param)


THREE = "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no') }}{% endif %}{{ reasoning_effort }}"  # noqa: E501
WITH_HIGH = THREE.replace("'xhigh'", "'xhigh', 'high'")


def efforts(qwen: PromptFormat, template: str) -> dict[str, str]:
    return {effort: shown(qwen, template, effort=effort) for effort in EFFORTS}


@pytest.mark.contract("chat.effort.nearest")
def test_an_effort_the_template_refuses_becomes_the_nearest_one_a_tie_going_up(qwen):
    assert efforts(qwen, THREE) == {
        "minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh", "max": "xhigh"
    }  # fmt: skip
    assert efforts(qwen, WITH_HIGH)["high"] == "high"
    assert nearest_effort("medium", frozenset({"low", "high"})) == "high"


@pytest.mark.contract("chat.effort.probe")
def test_a_template_that_refuses_every_effort_keeps_the_requests_value_and_its_error(qwen):
    with pytest.raises(ApiError, match="no high here"):
        shown(
            qwen,
            "{% if reasoning_effort is defined %}{{ raise_exception('no ' ~ reasoning_effort ~ ' here') }}{% endif %}",
            effort="high",
        )


@pytest.mark.contract("chat.effort.probe")
def test_a_template_that_cannot_render_the_probe_keeps_the_requests_value(qwen):
    needs_system = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}{{ reasoning_effort }}"
    )
    prompts = PromptBuilder(
        qwen, default_thinking=None, default_effort=None, default_preserve_thinking=None, template_override=needs_system
    )
    job = ChatJob(messages=(Message(role="system"),), effort="max")
    assert prompts.render(job) == "max"


def test_the_efforts_a_family_names_narrow_those_its_template_renders(qwen):
    named = dataclasses.replace(qwen, template="{{ reasoning_effort }}", efforts=("low", "high"))
    prompts = PromptBuilder(
        named, default_thinking=None, default_effort=None, default_preserve_thinking=None, template_override=None
    )
    job = ChatJob(messages=(Message(role="user"),), effort="medium")
    assert prompts.render(job) == "high"


@pytest.mark.parametrize(
    ("thinking", "effort", "flag"),
    [(False, "high", "--no-thinking"), (None, "most", "--default-reasoning-effort")],
)
@pytest.mark.contract("chat.effort.default-conflict")
def test_defaults_that_contradict_each_other_stop_the_start(qwen, thinking, effort, flag):
    with pytest.raises(OptionError, match=flag):
        shown(qwen, default_thinking=thinking, default_effort=effort)
