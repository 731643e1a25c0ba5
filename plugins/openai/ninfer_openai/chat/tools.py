"""Tools of a chat: what the model may call, what it has to call, and which calls go back in custom form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ninfer_core.api import ApiError, Tool
from ninfer_core.api.http import decode_now, invalid_value, not_supported, quoted
from ninfer_core.api.tool_sets import UnsupportedTool, check_declared_names, read_tools

from .types import AllowedTool, AllowedTools, ChatBody, CustomTool, Named, ToolChoice, ToolIn

INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}

T = TypeVar("T")
_tool_body = msgspec.json.Decoder(ToolIn)
_anything = msgspec.json.Decoder()


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSet:
    """``offered``: those the model may call. ``custom``: the names whose calls go back in custom form."""

    offered: tuple[Tool, ...] = ()
    forced: str | None = None
    custom: frozenset[str] = frozenset()
    dropped: tuple[str, ...] = ()


def tool_set(body: ChatBody, *, lenient: bool) -> ToolSet:
    """The effective tools of a request. ApiError 400 for a definition or a choice that cannot be honoured; a lenient
    server drops such definitions."""
    readers = (partial(_tool, raw, f"tools[{at}]") for at, raw in enumerate(body.tools or ()))
    declared, dropped = read_tools(readers, lenient=lenient)
    check_declared_names((tool.name, f"{tool.place}.{kind}.name") for kind, tool in declared)
    choice = Choice(
        tools=tuple(tool for _, tool in declared),
        kinds={tool.name: kind for kind, tool in declared},
        lenient=lenient,
    )
    offered, forced = choice.made(body.tool_choice)
    custom = frozenset(tool.name for kind, tool in declared if kind == "custom")
    return ToolSet(offered=offered, forced=forced, custom=custom, dropped=dropped)


def _tool(raw: msgspec.Raw, place: str) -> tuple[str, Tool]:
    """A definition and its kind: function or custom."""
    received = bytes(raw)
    # a struct skips what it does not know, and the prompt shows the whole definition
    decode_now(received, _anything, place=place)
    wire = decode_now(received, _tool_body, place=place)
    if wire.type == "function":
        function = given(wire.function, f"{place}.function")
        parameters = bytes(function.parameters).decode()
        if parameters[:1] not in ("{", "n"):
            raise invalid_value(f"{place}.function.parameters", function.parameters, "a JSON schema: an object")
        return "function", Tool(
            name=function.name,
            definition=received.decode(),
            parameters=parameters if parameters[0] == "{" else None,
            place=place,
        )
    if wire.type == "custom":
        return "custom", _as_function(given(wire.custom, f"{place}.custom"), place)
    text = f"'{place}.type' must be function or custom, but is {quoted(wire.type)}: the server runs no tools itself."
    raise UnsupportedTool("tool_type_not_supported", text, param=f"{place}.type", label=wire.type)


def _as_function(custom: CustomTool, place: str) -> Tool:
    """A custom tool as the model sees it: a function of one text."""
    if custom.format is not None and custom.format.type != "text":
        where = f"{place}.custom.format.type"
        text = f"'{where}' must be text, but is {quoted(custom.format.type)}: what a tool is given is not constrained."
        raise UnsupportedTool("custom_tool_format_not_supported", text, param=where, label=custom.name)
    function = {"name": custom.name, "description": custom.description, "parameters": INPUT}
    if custom.description is None:
        del function["description"]
    definition = {"type": "function", "function": function}
    return Tool(name=custom.name, definition=_json(definition), parameters=_json(INPUT), place=place)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """``tool_choice`` over the declared tools: those the model may call, and the one it has to."""

    tools: tuple[Tool, ...]
    kinds: Mapping[str, str]  # name -> function or custom
    lenient: bool  # a choice may list what was dropped

    def made(self, wire: str | ToolChoice | None) -> tuple[tuple[Tool, ...], str | None]:
        if wire is None or wire == "auto":
            return self.tools, None
        if wire == "none":
            return (), None
        if wire == "required":
            return self._required(self.tools, "tool_choice")
        if isinstance(wire, str):
            raise invalid_value("tool_choice", wire, "auto, none, required, or an object")
        if wire.type == "function":
            tool = self._declared(given(wire.function, "tool_choice.function"), "function", "tool_choice.function")
            return self.tools, tool.name
        if wire.type == "custom":
            # the choice narrows what is offered; that the tool is called cannot be promised
            return (self._declared(given(wire.custom, "tool_choice.custom"), "custom", "tool_choice.custom"),), None
        if wire.type == "allowed_tools":
            return self._allowed(given(wire.allowed_tools, "tool_choice.allowed_tools"), "tool_choice.allowed_tools")
        raise invalid_value("tool_choice.type", wire.type, "function, custom or allowed_tools")

    def _required(self, tools: tuple[Tool, ...], place: str) -> tuple[tuple[Tool, ...], str | None]:
        if not tools:
            raise ApiError("invalid_value", f"'{place}' asks for a call, but no tool can be called.", param=place)
        if len(tools) > 1:
            text = f"'{place}' asks for a call of any of {len(tools)} tools; a call is forced only where one is left."
            raise not_supported("tool_choice", text, param=place)
        return tools, tools[0].name

    def _allowed(self, wire: AllowedTools, place: str) -> tuple[tuple[Tool, ...], str | None]:
        if wire.mode not in ("auto", "required"):
            raise invalid_value(f"{place}.mode", wire.mode, "auto or required")
        names = {self._listed(entry, f"{place}.tools[{at}]") for at, entry in enumerate(wire.tools)}
        tools = tuple(tool for tool in self.tools if tool.name in names)
        return (tools, None) if wire.mode == "auto" else self._required(tools, f"{place}.mode")

    def _listed(self, entry: AllowedTool, place: str) -> str | None:
        if entry.type == "function":
            return self._declared_name(entry.function, "function", f"{place}.function")
        if entry.type == "custom":
            return self._declared_name(entry.custom, "custom", f"{place}.custom")
        if self.lenient:
            return None
        raise invalid_value(f"{place}.type", entry.type, "function or custom")

    def _declared_name(self, wire: Named | None, kind: str, place: str) -> str | None:
        named = given(wire, place)
        if self.lenient and named.name not in self.kinds:
            return None
        return self._declared(named, kind, place).name

    def _declared(self, wire: Named, kind: str, place: str) -> Tool:
        if self.kinds.get(wire.name) != kind:
            raise invalid_value(f"{place}.name", wire.name, f"the name of a {kind} tool of 'tools'")
        return next(tool for tool in self.tools if tool.name == wire.name)


def given(value: T | None, place: str) -> T:
    """A member that the type beside it calls for."""
    if value is None:
        raise ApiError("missing_required_parameter", f"'{place}' is required.", param=place)
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
