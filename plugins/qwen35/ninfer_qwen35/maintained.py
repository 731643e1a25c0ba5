"""The published chat templates with what they lack for agents, as changes to their own source.

A system or developer turn after the first stays where it is; ``developer`` is a system role; a conversation may begin
with tool results or hold nothing but them; an assistant turn to continue is rendered open, without a think block.
Any other template is used as it is.
"""

from __future__ import annotations

import hashlib
import re

KNOWN = frozenset(
    {
        "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",  # Qwen3.6
        "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",  # Qwen3.8
    }
)
"""SHA-256 of the sources these changes were written for."""

_LEADING_ROLE = re.compile(r"messages\[0\]\.role == 'system'")
_LATE_SYSTEM = re.compile(
    r"""\{%- if message\.role == "system" %\}\s*\{%- if not loop\.first %\}\s*"""
    r"""\{\{- raise_exception\('System message must be at the beginning\.'\) \}\}\s*\{%- endif %\}"""
)
_NO_QUERY = re.compile(
    r"""\{%- if ns\.multi_step_tool %\}\s*"""
    r"""\{\{- raise_exception\('No user query found in messages\.'\) \}\}\s*\{%- endif %\}"""
)
_TOOL_RUN = re.compile(r"""\{%- if loop\.previtem and loop\.previtem\.role != "tool" %\}""")
_KEEPS_THOUGHT = re.compile(r"\{%- if ([^%{}]*\bpreserve_thinking\b[^%{}]*\bns\.last_query_index\b[^%{}]*) %\}")

_SYSTEM_IN_PLACE = """\
{%- if message.role in ["system", "developer"] %}
        {%- if not loop.first %}
            {{- '<|im_start|>system\\n' + render_content(message.content, false, true)|trim + '<|im_end|>\\n' }}
        {%- endif %}"""
_LAST_TOOL_INSTEAD = """\
{%- if ns.multi_step_tool %}
    {%- for message in messages if message.role == "tool" %}
        {%- set ns.multi_step_tool = false %}
    {%- endfor %}
    {%- if ns.multi_step_tool %}
        {{- raise_exception('No user query found in messages.') }}
    {%- endif %}
    {%- for message in messages %}
        {%- if message.role == "tool" %}
            {%- set ns.last_query_index = loop.index0 %}
        {%- endif %}
    {%- endfor %}
{%- endif %}"""
_FIRST_OF_A_RUN = '{%- if loop.first or loop.previtem.role != "tool" %}'
_CONTINUED = "loop.last and continue_final_message is defined and continue_final_message"


def maintained(source: str) -> str:
    """The template to use for a checkpoint's own."""
    if hashlib.sha256(source.encode()).hexdigest() not in KNOWN:
        return source
    return changed(source)


def changed(source: str) -> str:
    """The source with the changes made; as it is, when one of them finds no place or more than one."""
    text, leading = _LEADING_ROLE.subn("messages[0].role in ['system', 'developer']", source)
    places = [leading > 0]
    for pattern, instead in (
        (_LATE_SYSTEM, _SYSTEM_IN_PLACE),
        (_NO_QUERY, _LAST_TOOL_INSTEAD),
        (_TOOL_RUN, _FIRST_OF_A_RUN),
    ):
        text, count = pattern.subn(lambda _, instead=instead: instead, text)
        places.append(count == 1)
    text, count = _KEEPS_THOUGHT.subn(rf"{{%- if not ({_CONTINUED}) and (\1) %}}", text)
    places.append(count == 1)
    return text if all(places) else source
