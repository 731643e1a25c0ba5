"""Tool definitions and what the client wants done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import msgspec

from ninfer_core.api import ApiError, Tool
from ninfer_core.api.http import invalid_value, not_supported, quoted
from ninfer_core.api.tool_sets import UnsupportedTool, check_declared_names, read_tools

from .blocks import filled, is_boundary, json_object
from .types import ToolChoice, ToolIn

CHOICES = ("auto", "none", "any", "tool")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSet:
    """The tools the model may call, and how. ``dropped``: labels of definitions that were left out."""

    offered: tuple[Tool, ...] = ()
    forced: str | None = None
    single: bool = False
    dropped: tuple[str, ...] = ()


def tool_set(wire: list[ToolIn] | None, choice: ToolChoice | None, *, lenient: bool) -> ToolSet:
    """The effective tools of a request. ApiError 400 for a definition or a choice that cannot be honoured; a lenient
    server drops definitions that the model could never call."""
    readers = (partial(_tool, one, f"tools[{at}]") for at, one in enumerate(wire or ()))
    declared, dropped = read_tools(readers, lenient=lenient)
    check_declared_names((tool.name, f"{tool.place}.name") for tool in declared)
    offered, forced = _chosen(tuple(declared), choice, dropped)
    single = choice is not None and bool(choice.disable_parallel_tool_use)
    return ToolSet(offered=offered, forced=forced, single=single, dropped=dropped)


def dropped_servers(wire: Sequence[Any] | None) -> tuple[str, ...]:
    """Labels of the MCP servers that a lenient server does without."""
    readers = (partial(_server, one, f"mcp_servers[{at}]") for at, one in enumerate(wire or ()))
    return read_tools(readers, lenient=True)[1]


def _tool(one: ToolIn, place: str) -> Tool:
    _refuse_unreachable(one, place)
    if one.strict:
        # it can be called, so it is not dropped: the client would be given less than it asked for
        text = f"Arguments are not constrained by their schema; '{place}.strict' must be false."
        raise not_supported("strict", text, param=f"{place}.strict")
    name = filled(one.name, place, "name")
    schema = json_object(one.input_schema, f"{place}.input_schema")
    kind = msgspec.json.decode(schema, type=Schema).type
    if kind not in ("object", msgspec.UNSET):
        raise invalid_value(f"{place}.input_schema.type", kind, "object")
    for at, example in enumerate(one.input_examples or ()):
        json_object(example, f"{place}.input_examples[{at}]")
    function: dict[str, Any] = {
        "name": name,
        **({} if one.description is None else {"description": one.description}),
        "parameters": one.input_schema,
        **({"input_examples": one.input_examples} if one.input_examples else {}),
    }
    return Tool(
        name=name,
        definition=msgspec.json.encode({"type": "function", "function": function}).decode(),
        parameters=schema,
        place=place,
        cache_boundary=is_boundary(one.cache_control),
    )


class Schema(msgspec.Struct):
    """Of a tool's parameters, what is looked at here."""

    type: Any = msgspec.UNSET


def _refuse_unreachable(one: ToolIn, place: str) -> None:
    """UnsupportedTool for what no model could call through its client."""
    member = text = ""
    if one.type == "function":
        member = "tool_type"
        text = f"'{place}' has the form of OpenAI's tools; here a tool is its name, description and input_schema."
    elif one.type not in (None, "custom"):
        member = "tool_type"
        text = (
            "Tools that a server defines or runs, toolsets and MCP are not available; "
            f"'{place}.type' must be custom, but is {quoted(one.type)}. With --lenient-tools they are left out."
        )
    elif one.defer_loading:
        member = "defer_loading"
        text = f"Tools are not looked up later; '{place}.defer_loading' must be false."
    elif one.allowed_callers is not None and "direct" not in one.allowed_callers:
        member = "allowed_callers"
        text = f"Only the model itself calls tools; '{place}.allowed_callers' must hold direct."
    if member:
        param = f"{place}.{member.removeprefix('tool_')}"
        label = one.name or one.type or place
        raise UnsupportedTool(f"{member}_not_supported", text, param=param, label=label)


def _server(one: Any, place: str) -> NoReturn:
    name = one.get("name") if isinstance(one, dict) else None
    label = name if isinstance(name, str) and name else place
    raise UnsupportedTool("mcp_servers_not_supported", "No MCP servers are called.", param=place, label=label)


def _chosen(
    declared: tuple[Tool, ...], choice: ToolChoice | None, dropped: tuple[str, ...]
) -> tuple[tuple[Tool, ...], str | None]:
    """Those the model may call, and the one it has to."""
    if choice is None or choice.type == "auto":
        return declared, None
    if choice.type == "none":
        return (), None
    if choice.type == "any":
        if not declared:
            text = "'tool_choice.type' is any, but no tool can be called."
            raise ApiError("invalid_value", text, param="tool_choice")
        # that one of several is called cannot be promised: they stay offered, as under auto
        return declared, declared[0].name if len(declared) == 1 else None
    if choice.type != "tool":
        raise invalid_value("tool_choice.type", choice.type, f"one of {', '.join(CHOICES)}")
    name = filled(choice.name, "tool_choice", "name")
    if all(name != tool.name for tool in declared):
        why = "was dropped: it cannot be called" if name in dropped else f"is none of the {len(declared)} tools"
        text = f"'tool_choice.name' is {quoted(name)}, which {why}."
        raise ApiError("invalid_value", text, param="tool_choice.name")
    return declared, name
