"""The conversation: OpenAI's messages as the core's, each with its place for refusals found later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ninfer_core.api import ApiError, Message, Part, ToolCall
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.http import invalid_value, not_supported, quoted
from ninfer_core.api.tool_sets import check_name

from .tools import given
from .types import CustomIn, FunctionIn, MediaSource, MessageIn, PartIn, ToolCallIn

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
CONTENT = {  # role -> the types of parts it may hold
    "user": ("text", "image_url", "video_url"),
    "assistant": ("text", "refusal"),
    "tool": ("text", "image_url"),
}
NEITHER_TEXT_NOR_IMAGE = ("input_audio", "audio", "file", "input_file")
DETAILS = ("auto", "high", "low")


def messages(wire: Sequence[MessageIn], *, lenient_detail: bool) -> tuple[Message, ...]:
    """Every message in order. ApiError 400 with the place of what cannot be represented."""
    return tuple(_message(message, f"messages[{at}]", lenient_detail) for at, message in enumerate(wire))


def _message(wire: MessageIn, place: str, lenient_detail: bool) -> Message:
    if wire.role not in ROLES:
        raise invalid_value(f"{place}.role", wire.role, f"one of {', '.join(ROLES)}")
    refuse_unsupported(wire, place)
    _check_name(wire, place)
    content = _content(wire, place, lenient_detail)
    if wire.role == "assistant":
        return Message(
            role="assistant",
            content=(*content, Part(text=wire.refusal)) if wire.refusal else content,
            reasoning=_reasoning(wire, place),
            tool_calls=_tool_calls(wire, place),
            place=place,
        )
    for field in ("tool_calls", "function_call"):
        if getattr(wire, field):
            text = f"'{place}.{field}' belongs to an assistant message, not to one of role {wire.role}."
            raise ApiError("invalid_value", text, param=f"{place}.{field}")
    if wire.role == "tool":
        given(wire.tool_call_id or None, f"{place}.tool_call_id")
    # a legacy function result is a tool result without a call id
    role = "tool" if wire.role == "function" else wire.role
    return Message(role=role, content=content, tool_call_id=wire.tool_call_id, place=place)  # type: ignore[arg-type]


def _check_name(wire: MessageIn, place: str) -> None:
    """A tool result may repeat its function's name; elsewhere a name is a participant the template cannot show."""
    if wire.role == "function":
        given(wire.name or None, f"{place}.name")
    if wire.name and wire.role not in ("tool", "function"):
        text = f"Participants have no names here; '{place}.name' is {quoted(wire.name)}."
        raise not_supported("name", text, param=f"{place}.name")


def _content(wire: MessageIn, place: str, lenient_detail: bool) -> tuple[Part, ...]:
    """Text and refusal parts, adjacent ones kept apart; nothing is put between them."""
    if wire.content is None:
        if wire.role != "assistant":
            raise invalid_value(f"{place}.content", None, "a string or an array of parts")
        return ()
    if isinstance(wire.content, str):
        return (Part(text=wire.content),)
    kinds = CONTENT.get(wire.role, ("text",))
    return tuple(_part(part, f"{place}.content[{at}]", kinds, lenient_detail) for at, part in enumerate(wire.content))


def _part(part: PartIn, place: str, kinds: Sequence[str], lenient_detail: bool) -> Part:
    if part.type in NEITHER_TEXT_NOR_IMAGE:
        raise not_supported(part.type, f"Only text is read; '{place}' is of type {quoted(part.type)}.", param=place)
    if part.type not in kinds:
        raise invalid_value(f"{place}.type", part.type, " or ".join(kinds))
    value = given(getattr(part, part.type), f"{place}.{part.type}")
    if part.type in ("text", "refusal"):
        return Part(text=value)
    if isinstance(value, MediaSource) and part.type == "image_url":
        _check_detail(value, f"{place}.image_url", lenient_detail)
    text = f"This server reads no images and no video; '{place}' is of type {quoted(part.type)}."
    raise ApiError("vision_disabled", text, param=place)


def _check_detail(source: MediaSource, place: str, lenient: bool) -> None:
    if source.detail is not None and source.detail not in DETAILS and not lenient:
        text = f"'{place}.detail' must be {', '.join(DETAILS)}, but is {quoted(source.detail)}."
        raise ApiError("image_detail_not_supported", text, param=f"{place}.detail")


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
    if call.type not in ("function", "custom"):
        raise invalid_value(f"{place}.type", call.type, "function or custom")
    where = f"{place}.{call.type}"
    if call.type == "function":
        return _function(call.id or "", given(call.function, where), where)
    return _custom(call.id or "", given(call.custom, where), where)


def _function(id: str, function: FunctionIn, place: str) -> ToolCall:
    check_name(function.name, f"{place}.name")
    return ToolCall(id=id, name=function.name, arguments=_arguments(function.arguments, f"{place}.arguments"))


def _custom(id: str, call: CustomIn, place: str) -> ToolCall:
    check_name(call.name, f"{place}.name")
    return ToolCall(id=id, name=call.name, arguments=msgspec.json.encode({"input": call.input}).decode())


def _arguments(raw: msgspec.Raw, place: str) -> str:
    """The object a call's arguments spell, as received; an empty text is no arguments."""
    text = ""
    try:
        received = bytes(raw).decode()
        text = msgspec.json.decode(received) if received.startswith('"') else received
        if isinstance(text, str) and not text.strip():
            return "{}"
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise invalid_value(place, text, "a JSON object, as text")
    return text
