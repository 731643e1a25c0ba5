"""Content blocks as parts of a conversation, each with its place for refusals. What needs something this server does
not have is refused, and the refusal says what that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer_core.api import ApiError, Part, ToolCall
from ninfer_core.api.http import decode_now, invalid_value, not_supported, quoted

from .types import Block, Inner

_anything = msgspec.json.Decoder()

FAILED = "The tool failed:\n"
"""What the model reads in front of a result with ``is_error``."""

MISSING = {
    "document": "Documents are not read",
    "search_result": "Search results are not cited",
    "container_upload": "There are no containers to upload into",
    "tool_reference": "Tools are not looked up by reference",
    "server_tool_use": "No tools are run on the server",
    "mcp_tool_use": "No MCP servers are called",
    "mcp_tool_result": "No MCP servers are called",
}
"""Blocks that need something absent; results of tools that run on a server are recognised by their ending."""

TAKEN = {
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "tool_result": ("text", "image"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A block and where it was in the body."""

    block: Block
    place: str


def is_boundary(cache_control: Any) -> bool:
    """Whether this is a hint that the prompt up to here is worth keeping; other values ask for nothing."""
    return isinstance(cache_control, dict) and cache_control.get("type") == "ephemeral"


def blocks(content: str | list[Block], place: str, role: str) -> list[Placed]:
    """The content of one message, a plain string as one text block."""
    if isinstance(content, str):
        return [Placed(block=Block(type="text", text=content), place=place)]
    placed = [Placed(block=block, place=f"{place}[{at}]") for at, block in enumerate(content)]
    for one in placed:
        refuse_foreign(one.block.type, one.place, role)
    return placed


def refuse_foreign(kind: str, place: str, role: str) -> None:
    """ApiError for a block that has no place among ``role``'s."""
    if kind == "image" and role != "assistant":
        text = f"This server reads no images; '{place}' is of type image."
        raise ApiError("vision_disabled", text, param=place)
    if kind in TAKEN[role]:
        return
    why = MISSING.get(kind)
    if why is None and kind.endswith("_tool_result"):
        why = "No tools are run on the server"
    if why is not None:
        raise not_supported(kind, f"{why}; '{place}' is of type {quoted(kind)}.", param=place)
    raise invalid_value(f"{place}.type", kind, "one of " + ", ".join(TAKEN[role]))


def text_part(one: Placed) -> Part:
    """A text block."""
    text = needed(one.block.text, one.place, "text")
    return Part(text=text, cache_boundary=is_boundary(one.block.cache_control))


def result_parts(one: Placed) -> tuple[Part, ...]:
    """What a tool result says, in its order; a failed one says so first. The block's own hint counts for its end."""
    content, place = one.block.content, f"{one.place}.content"
    if isinstance(content, dict):
        text = f"'{place}' must be a string or an array of blocks, but is {quoted(content)}."
        raise ApiError("invalid_type", text, param=place)
    if isinstance(content, str):
        parts = [Part(text=content)]
    else:
        parts = [_inner_part(inner, f"{place}[{at}]") for at, inner in enumerate(content or ())]
    if one.block.is_error:
        parts.insert(0, Part(text=FAILED))
    if is_boundary(one.block.cache_control):
        last = parts.pop() if parts else Part(text="")
        parts.append(Part(text=last.text, cache_boundary=True))
    return tuple(parts)


def _inner_part(inner: Inner, place: str) -> Part:
    refuse_foreign(inner.type, place, "tool_result")
    return Part(text=needed(inner.text, place, "text"), cache_boundary=is_boundary(inner.cache_control))


def tool_call(one: Placed) -> ToolCall:
    """A call of the history; its input stays spelled as it was received."""
    block = one.block
    return ToolCall(
        id=filled(block.id, one.place, "id"),
        name=filled(block.name, one.place, "name"),
        arguments=json_object(block.input, f"{one.place}.input"),
    )


def json_object(raw: msgspec.Raw, param: str) -> str:
    """The text of a member that has to be a JSON object."""
    received = bytes(raw)
    if received == b"null":
        raise ApiError("missing_required_parameter", f"'{param}' is required: it is an object.", param=param)
    # the body's decoder has only passed over it
    value = decode_now(received, _anything, place=param)
    if not isinstance(value, dict):
        raise ApiError("invalid_type", f"'{param}' must be an object, but is {quoted(value)}.", param=param)
    return received.decode()


def needed(value: str | None, place: str, member: str) -> str:
    """A member that has to be there."""
    if value is None:
        param = f"{place}.{member}"
        raise ApiError("missing_required_parameter", f"'{param}' is required: it is a string.", param=param)
    return value


def filled(value: str | None, place: str, member: str) -> str:
    """A member that has to be there and to say something."""
    if not needed(value, place, member):
        raise invalid_value(f"{place}.{member}", "", "a string that is not empty")
    return value or ""
