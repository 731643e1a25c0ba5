import dataclasses

import pytest
import structlog

from ninfer_core.api import ApiError, ChatJob, Message, Part, PromptFormat, Tool, ToolCall
from ninfer_core.text.prompt import PromptBuilder

SHOW = (
    "{{ tools | tojson }}|{{ enable_thinking | default('-') }}|{{ reasoning_effort | default('-') }}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}|{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)
DEFINITION = '{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":[1E5,{"b":-0}],"é":"\\u00e9"}}}'
TOOL = Tool(name="f", definition=DEFINITION, place="tools[0]")


def say(role: str, text: str = "", **members: object) -> Message:
    return Message(role=role, content=(Part(text=text),), **members)


def builder(format: PromptFormat, template: str | None = None, **defaults: object) -> PromptBuilder:
    names = ("default_thinking", "default_effort", "default_preserve_thinking")
    return PromptBuilder(format, template_override=template, **{name: defaults.get(name) for name in names})


def job(**members: object) -> ChatJob:
    return ChatJob(messages=(say("user", "hi"),), tools=(TOOL,), **members)


def refused(prompts: PromptBuilder, asked: ChatJob) -> tuple[str, str | None]:
    with pytest.raises(ApiError) as caught:
        prompts.chat(asked)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


@pytest.mark.parametrize("thread", ["unsloth-10845", "dspy-10216", "sglang-34553"])
def test_definitions_and_arguments_keep_order_and_the_spelling_of_numbers(qwen, thread):
    arguments = '{"path":"p","edits":[{"new":1.0,"old":"é"}],"n":123456789012345678901234567890,"e":1E5}'
    call = ToolCall(id="1", name="f", arguments=arguments)
    asked = ChatJob(messages=(say("user", "q"), say("assistant", tool_calls=(call,))), tools=(TOOL,))
    shown = builder(qwen, SHOW).render(asked)
    assert shown == (
        '[{"type": "function", "function": {"name": "f", "parameters": {"z": 1.0, "a": [1E5, {"b": -0}], "é": "é"}}}]'
        '|-|-|{"path": "p", "edits": [{"new": 1.0, "old": "é"}], "n": 123456789012345678901234567890, "e": 1E5}'
    )


def test_templates_compute_with_numbers_whose_spelling_is_kept(qwen):
    template = (
        "{% set a = messages[0].tool_calls[0].function.arguments %}"
        "{{ a.n + 1 }} {{ a.n is number }} {{ a.n > 2 }} {{ a.n | int }} {{ a.n }} {{ a.n | string }} {{ a.l | sum }} "
        "{{ range(a.i) | list }} {{ '%d' % a.i }} {{ a.i is integer }} {{ [a.n, 1] | max }}"
    )
    call = ToolCall(id="1", name="f", arguments='{"n":1E1,"l":[1.50,2],"i":3}')
    text = builder(qwen, template).render(ChatJob(messages=(say("assistant", tool_calls=(call,)),)))
    assert text == "11.0 True True 10 1E1 1E1 3.5 [0, 1, 2] 3 True 1E1"


@pytest.mark.parametrize(("template", "told"), [(SHOW, []), ("{{ messages[0].content }}", [{"tools": 1}])])
def test_the_log_tells_of_tools_that_the_template_has_no_place_for(qwen, template, told):
    with structlog.testing.capture_logs() as entries:
        builder(qwen, template).chat(job())
    warned = [entry for entry in entries if entry["event"] == "tools_not_shown"]
    assert [{"tools": entry["tools"]} for entry in warned] == told


def test_without_tools_the_variable_is_none_and_nothing_is_read(qwen):
    prepared = builder(qwen).chat(ChatJob(messages=(say("user", "hi"),)))
    assert prepared.tools is None
    assert builder(qwen, SHOW).render(ChatJob(messages=(say("user", "hi"),))).startswith("null|")


def test_a_model_without_a_syntax_is_shown_tools_and_its_calls_are_text(chatml):
    assert builder(chatml).chat(job()).tools is None
    assert builder(chatml, SHOW).render(job()).startswith('[{"type": "function"')
    assert refused(builder(chatml), job(forced_tool="f")) == ("tool_choice_not_supported", "tool_choice")


BAD = ["[]", "", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": "\\ud83d"}', '{"a": 1e999}', "[" * 100_000]


@pytest.mark.parametrize("text", BAD, ids=[text[:16] for text in BAD])
def test_json_that_is_none_is_refused_with_its_place(qwen, text):
    prompts = builder(qwen)
    bad = dataclasses.replace(TOOL, definition=text, place="tools[3]")
    assert refused(prompts, dataclasses.replace(job(), tools=(bad,))) == ("invalid_value", "tools[3]")
    schema = dataclasses.replace(TOOL, parameters=text, place="tools[1]")
    assert refused(prompts, dataclasses.replace(job(), tools=(TOOL, schema))) == ("invalid_value", "tools[1]")
    for place, expected in (("messages[0].tool_calls[0]", "messages[0].tool_calls[0]"), ("", "messages[0]")):
        call = ToolCall(id="1", name="f", arguments=text, place=place)
        history = ChatJob(messages=(say("assistant", tool_calls=(call,), place="messages[0]"),))
        assert refused(prompts, history) == ("invalid_value", expected)


def test_properties_that_are_no_object_are_refused(qwen):
    bad = dataclasses.replace(TOOL, parameters='{"properties": [1]}')
    assert refused(builder(qwen), dataclasses.replace(job(), tools=(bad,))) == ("invalid_value", "tools[0]")


def test_a_forced_call_ends_the_prompt_with_its_opener(qwen):
    prompts = builder(qwen)
    asked = job(forced_tool="f")
    text = prompts.render(asked)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n")
    prepared = prompts.chat(asked)
    assert (prepared.in_reasoning, prepared.thinking, prepared.reasoning) == (False, False, None)
    assert prepared.tools is not None
    assert prepared.tools.forced == "f"
    tokenizer = qwen.tokenizer
    assert (
        list(prepared.ids)[-len(tokenizer.encode_with_control("\n<function=f>\n")) - 1]
        == (tokenizer.control_tokens["<tool_call>"])
    )


def test_a_tools_name_is_the_clients_text_in_the_opener_too(qwen):
    named = dataclasses.replace(TOOL, name="</tool_call>", definition='{"name": "x"}')
    asked = ChatJob(messages=(say("user", "hi"),), tools=(named,), forced_tool="</tool_call>")
    ids = builder(qwen).chat(asked).ids
    assert qwen.tokenizer.control_tokens["</tool_call>"] not in ids
    assert qwen.tokenizer.control_tokens["<tool_call>"] in ids


def test_thinking_the_request_asks_for_rules_out_a_forced_call(qwen):
    for fields in ({"thinking": True}, {"effort": "high"}, {"template_kwargs": {"enable_thinking": True}}):
        for defaults in ({}, {"default_thinking": False}):
            asked = job(forced_tool="f", **fields)
            assert refused(builder(qwen, **defaults), asked) == ("tool_choice_not_supported", "tool_choice")


def test_thinking_only_a_default_turns_on_gives_way_to_a_forced_call(qwen):
    for defaults in ({}, {"default_thinking": True}, {"default_effort": "high"}):
        for fields in ({}, {"thinking": False}, {"effort": "none"}, {"thinking": False, "effort": "high"}):
            prompts = builder(qwen, SHOW, **defaults)
            assert prompts.render(job(forced_tool="f", **fields)).split("|")[1:] == [
                "False",
                "-<tool_call>\n<function=f>\n",
            ]


def test_a_forced_call_needs_an_answer_of_its_own_and_a_declared_tool(qwen):
    messages = (say("user", "q"), say("assistant", "a"))
    prefilled = ChatJob(messages=messages, tools=(TOOL,), forced_tool="f", prefill=True, thinking=False)
    assert refused(builder(qwen), prefilled) == ("tool_choice_not_supported", "tool_choice")
    assert refused(builder(qwen), job(forced_tool="g")) == ("invalid_value", "tool_choice")


def test_a_template_that_always_thinks_cannot_have_a_call_forced(qwen):
    always = "{{ messages[0].content }}<|im_start|>assistant\n<think>\n"
    assert refused(builder(qwen, always), job(forced_tool="f")) == ("tool_choice_not_supported", "tool_choice")


def test_a_request_for_one_call_is_read_that_way(qwen):
    prepared = builder(qwen).chat(job(single_call=True))
    assert prepared.tools is not None
    assert prepared.tools.single
    assert prepared.tools.types.names == {"f"}


def test_a_developer_turn_a_template_refuses_is_tried_as_a_system_turn(chatml):
    template = (
        "{% for m in messages %}{% if m.role == 'developer' %}"
        "{{ raise_exception('no developer here') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    asked = ChatJob(messages=(say("developer", "d"), say("user", "u")))
    assert builder(chatml, template).render(asked) == "[system:d][user:u]"
    always = "{% if 'developer' %}{{ raise_exception('never') }}{% endif %}"
    with pytest.raises(ApiError, match="never"):
        builder(chatml, always).render(asked)
