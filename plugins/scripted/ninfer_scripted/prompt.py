"""The Qwen form: turns, tools, thinking, efforts."""

from __future__ import annotations

from ninfer_core.api import Checkpoint, Preset, PromptFormat, ReasoningSyntax

from .script import script_of
from .tokenizer import END_OF_TEXT, IM_END, THINK, THINK_END

EFFORTS = ("low", "medium", "xhigh")
EARLY_CLOSE = "\n\nTime to answer.\n</think>\n\n"


def prompt_format(checkpoint: Checkpoint) -> PromptFormat:
    """The prompt format of one script; only its tokenizer depends on the script."""
    from ninfer_core.api.text import TagToolSyntax

    tokenizer = script_of(checkpoint).tokenizer
    return PromptFormat(
        early_close=EARLY_CLOSE,
        tokenizer=tokenizer,
        template=TEMPLATE,
        template_globals={"eos_token": IM_END, "pad_token": END_OF_TEXT},
        stop_ids=frozenset(tokenizer.control_tokens[text] for text in (IM_END, END_OF_TEXT)),
        reasoning=ReasoningSyntax(open=THINK, close=THINK_END),
        tools=TagToolSyntax(),
        thinks_by_default=True,
        thinking_variable="enable_thinking",
        efforts=EFFORTS,
        preset=Preset(temperature=0.7, top_p=0.8, presence_penalty=1.5),
        thinking_preset=Preset(temperature=1.0, top_p=0.95),
    )


TEMPLATE = """\
{%- set thinking = enable_thinking is not defined or enable_thinking %}
{%- set effort = reasoning_effort if thinking and reasoning_effort is defined else none %}
{%- if effort is not none and effort not in ('low', 'medium', 'xhigh') %}
    {{- raise_exception('reasoning_effort must be low, medium or xhigh') }}
{%- endif %}
{%- if not messages %}
    {{- raise_exception('there are no messages') }}
{%- endif %}
{%- macro text(content) %}
    {%- if content is string %}
        {{- content | trim }}
    {%- elif content is not none and content is iterable and content is not mapping %}
        {%- for part in content %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- macro call(tool_call) %}
    {%- set function = tool_call.function if tool_call.function is defined else tool_call %}
    {{- '<tool_call>\\n<function=' + function.name + '>\\n' }}
    {%- for key, value in function.arguments | items %}
        {{- '<parameter=' + key + '>\\n' }}
        {{- value if value is string else value | tojson }}
        {{- '\\n</parameter>\\n' }}
    {%- endfor %}
    {{- '</function>\\n</tool_call>' }}
{%- endmacro %}
{%- set turns = namespace(query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set turns.query = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set leads = messages[0].role in ('system', 'developer') %}
{%- set head = [] %}
{%- if effort is not none %}
    {%- set head = head + ['Reasoning effort: ' + effort + '.'] %}
{%- endif %}
{%- if tools is defined and tools %}
    {%- set list = namespace(lines='') %}
    {%- for tool in tools %}
        {%- set list.lines = list.lines + (tool | tojson) + '\\n' %}
    {%- endfor %}
    {%- set head = head + ['# Tools\\n\\n<tools>\\n' + list.lines + '</tools>\\n\\nTo call one, write:\\n<tool_call>\\n\
<function=NAME>\\n<parameter=NAME>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>'] %}
{%- endif %}
{%- if leads and text(messages[0].content) %}
    {%- set head = head + [text(messages[0].content)] %}
{%- endif %}
{%- if head %}
    {{- '<|im_start|>system\\n' + head | join('\\n\\n') + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('system', 'developer') %}
        {%- if not loop.first %}
            {{- '<|im_start|>system\\n' + text(message.content) + '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + text(message.content) + '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set kept = preserve_thinking is not defined or preserve_thinking or loop.index0 > turns.query %}
        {%- if kept and message.reasoning_content is defined and message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content | trim + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- text(message.content) }}
        {%- for tool_call in message.tool_calls | default([], true) %}
            {{- ('\\n\\n' if text(message.content) else '') if loop.first else '\\n' }}
            {{- call(tool_call) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt is defined and add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {{- '<think>\\n' if thinking else '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""
