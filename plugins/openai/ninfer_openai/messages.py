"""The conversation: OpenAI's messages as the core's, each with its place for refusals found later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ninfer_core.api import ApiError, Message, Part, ToolCall
from ninfer_core.api.http import invalid_value, not_supported, quoted

from .types import FunctionIn, MessageIn, PartIn, ToolCallIn

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MEDIA = ("image_url", "video_url", "input_image", "image", "video")


def messages(wire: Sequence[MessageIn]) -> tuple[Message, ...]:
    """Every message in order. ApiError 400 with the place of what cannot be represented."""
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(wire))


def _message(wire: MessageIn, place: str) -> Message:
    if wire.role not in ROLES:
        raise invalid_value(f"{place}.role", wire.role, f"one of {', '.join(ROLES)}")
    _refuse_names(wire, place)
    if wire.role == "assistant":
        return Message(
            role="assistant",
            content=_assistant_content(wire, place),
            reasoning=_reasoning(wire, place),
            tool_calls=_tool_calls(wire, place),
            place=place,
        )
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(wire, field):
            text = f"'{place}.{field}' belongs to an assistant message, not to one of role {wire.role}."
            raise ApiError("invalid_value", text, param=f"{place}.{field}")
    if wire.role == "tool" and not wire.tool_call_id:
        raise ApiError(
            "missing_required_parameter",
            f"'{place}.tool_call_id' is required: a tool message names the call it answers.",
            param=f"{place}.tool_call_id",
        )
    if wire.content is None:
        raise invalid_value(f"{place}.content", None, "a string or an array of parts")
    # a legacy function result is a tool result without a call id
    return Message(
        role="tool" if wire.role == "function" else wire.role,  # type: ignore[arg-type]
        content=_parts(wire.content, f"{place}.content", wire.role),
        tool_call_id=wire.tool_call_id,
        place=place,
    )


def _refuse_names(wire: MessageIn, place: str) -> None:
    """A tool result may repeat its function's name; elsewhere a name is a participant the template cannot show."""
    if wire.role == "function" and not wire.name:
        raise ApiError("missing_required_parameter", f"'{place}.name' is required.", param=f"{place}.name")
    if wire.name and wire.role not in ("tool", "function"):
        text = f"Participants have no names here; '{place}.name' is {quoted(wire.name)}."
        raise not_supported("name", text, param=f"{place}.name")


def _assistant_content(wire: MessageIn, place: str) -> tuple[Part, ...]:
    if wire.audio is not None:
        raise not_supported("audio", "Audio is neither read nor generated.", param=f"{place}.audio")
    content = () if wire.content is None else _parts(wire.content, f"{place}.content", "assistant")
    return (*content, Part(text=wire.refusal)) if wire.refusal else content


def _parts(content: str | list[PartIn], place: str, role: str) -> tuple[Part, ...]:
    """Text and refusal parts, adjacent ones kept apart; nothing is put between them."""
    if isinstance(content, str):
        return (Part(text=content),)
    return tuple(_part(part, f"{place}[{at}]", role) for at, part in enumerate(content))


def _part(part: PartIn, place: str, role: str) -> Part:
    if part.type in MEDIA:
        text = f"This server reads no images and no video; '{place}' is of type {quoted(part.type)}."
        raise ApiError("vision_disabled", text, param=place)
    if part.type in ("input_audio", "audio", "file", "input_file"):
        raise not_supported(part.type, f"Only text is read; '{place}' is of type {quoted(part.type)}.", param=place)
    known = {"text": part.text, "refusal": part.refusal} if role == "assistant" else {"text": part.text}
    if part.type not in known:
        raise invalid_value(f"{place}.type", part.type, " or ".join(known))
    value = known[part.type]
    if value is None:
        param = f"{place}.{part.type}"
        raise ApiError("missing_required_parameter", f"'{param}' is required: it is a string.", param=param)
    return Part(text=value)


def _reasoning(wire: MessageIn, place: str) -> str | None:
    """``reasoning_content`` and its alias ``reasoning``."""
    given = [text for text in (wire.reasoning_content, wire.reasoning) if text is not None]
    if len(set(given)) > 1:
        text = f"'{place}.reasoning_content' and '{place}.reasoning' differ; send one of them."
        raise ApiError("invalid_value", text, param=f"{place}.reasoning")
    return given[0] if given else None


def _tool_calls(wire: MessageIn, place: str) -> tuple[ToolCall, ...]:
    calls = [_tool_call(call, f"{place}.tool_calls[{at}]") for at, call in enumerate(wire.tool_calls or ())]
    if wire.function_call is not None:
        calls.append(_function("", wire.function_call, f"{place}.function_call"))
    return tuple(calls)


def _tool_call(call: ToolCallIn, place: str) -> ToolCall:
    if call.type == "function" and call.function is not None:
        return _function(call.id or "", call.function, f"{place}.function")
    if call.type == "custom" and call.custom is not None:
        return ToolCall(id=call.id or "", name=call.custom.name, arguments={"input": call.custom.input})
    if call.type not in ("function", "custom"):
        raise invalid_value(f"{place}.type", call.type, "function or custom")
    raise ApiError("missing_required_parameter", f"'{place}.{call.type}' is required.", param=f"{place}.{call.type}")


def _function(id: str, function: FunctionIn, place: str) -> ToolCall:
    return ToolCall(id=id, name=function.name, arguments=_arguments(function.arguments, f"{place}.arguments"))


def _arguments(value: str | dict[str, Any], place: str) -> dict[str, Any]:
    """The object a call's arguments spell, members in received order; an empty text is no arguments."""
    if isinstance(value, dict):
        return value
    if not value.strip():
        return {}
    try:
        decoded = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise invalid_value(place, value, "a JSON object, as text")
    return decoded
