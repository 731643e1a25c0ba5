"""Rendering against transformers, the reference for what a template means."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ChatJob, Message, Part, Tool, ToolCall
from ninfer_core.text.prompt import PromptBuilder

utils = pytest.importorskip("transformers.utils.chat_template_utils")

text = st.lists(
    st.sampled_from(["<think>", "</think>", "<|im_end|>", "<", "\n", "  ", "é\u2028", '"q"', "a", "end|>", "\t"]),
    max_size=6,
).map("".join)
argument = st.recursive(
    text | st.integers() | st.booleans() | st.none(), lambda x: st.lists(x, max_size=2), max_leaves=4
)
arguments = st.dictionaries(text, argument, max_size=2).map(json.dumps)
call = st.builds(ToolCall, id=st.just("call_1"), name=st.just("f"), arguments=arguments)
part = st.builds(Part, text=text)
message = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user", "tool"]), content=st.tuples(part)),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.tuples(part),
        reasoning=st.none() | text,
        tool_calls=st.lists(call, max_size=2).map(tuple),
    ),
)


def as_transformers_takes_it(item: Message) -> dict[str, object]:
    turn: dict[str, object] = {"role": item.role, "content": item.text}
    if item.reasoning is not None:
        turn["reasoning_content"] = item.reasoning
    if item.tool_calls:
        turn["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in item.tool_calls
        ]
    return turn


@pytest.mark.parametrize("kind", ["qwen", "chatml"])
@given(
    messages=st.lists(message, min_size=1, max_size=4),
    definitions=st.lists(st.dictionaries(text, argument, max_size=2), max_size=2),
    thinking=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_every_conversation_renders_as_transformers_renders_it(kind, messages, definitions, thinking, request):
    format = request.getfixturevalue(kind)
    prompts = PromptBuilder(
        format, default_thinking=thinking, default_effort=None, default_preserve_thinking=None, template_override=None
    )
    rendered, _ = utils.render_jinja_template(
        conversations=[[as_transformers_takes_it(item) for item in messages]],
        chat_template=format.template,
        tools=definitions or None,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    tools = tuple(Tool(name=f"t{i}", definition=json.dumps(each)) for i, each in enumerate(definitions))
    assert prompts.render(ChatJob(messages=tuple(messages), tools=tools)) == rendered[0]
