"""What of a request is sure to be in its prompt, as far as small conversations tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_core.api import ApiError, Message, Part, Tool
from ninfer_core.api.families import Tokenizer

from .template import ChatTemplate

PROBE = '{"type": "function", "function": {"name": "probe_tool", "x_note": "Well?"}}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a template shows. ``turn_tokens``: of one more turn, roughly, whatever it says."""

    users: bool = False  # everything users write
    definitions: bool = False  # the definitions of tools, whole
    tools: bool = False  # tools at all
    turn_tokens: int = 1


def shown_by(template: ChatTemplate, tokenizer: Tokenizer) -> Shown:
    """Nothing is sure of a template that refuses the conversations tried here."""
    alone = _rendered(template, _turns("Hi"))
    talk = _rendered(template, _turns("Hi", "Well?", "Bye"))
    tools = _rendered(template, _turns("Hi"), (Tool(name="probe_tool", definition=PROBE),))
    if alone is None or talk is None:
        return Shown(tools=tools is None or "probe_tool" in tools)
    more = len(tokenizer.encode_with_control(talk)) - len(tokenizer.encode_with_control(alone))
    return Shown(
        users="Hi" in talk and "Bye" in talk,
        definitions=tools is not None and PROBE in tools,
        tools=tools is None or "probe_tool" in tools,
        turn_tokens=max(more // 2 - 2, 1),
    )


def _turns(*words: str) -> list[Message]:
    roles = ("user", "assistant")
    return [Message(role=roles[at % 2], content=(Part(text=word),)) for at, word in enumerate(words)]  # type: ignore[arg-type]


def _rendered(template: ChatTemplate, turns: Sequence[Message], tools: Sequence[Tool] = ()) -> str | None:
    try:
        return template.render(turns, settings={}, client={}, tools=tools).text
    except ApiError:
        return None
