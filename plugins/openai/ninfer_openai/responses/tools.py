"""Functions of a Response, direct and in namespaces: what the model may call, what it has to call, and how a call is
named on the wire again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ninfer_core.api import ApiError, Tool
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.http import decode_now, invalid_value, not_supported, quoted
from ninfer_core.api.tool_sets import UnsupportedTool, check_declared_names, read_tools

from .types import AllowedIn, FunctionIn, NamespaceIn, PromptBody, ToolChoiceIn

NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHOWN = ("name", "description", "parameters")  # members of a definition that the prompt shows
CHOICES = "auto, none, required, or an object of type function or allowed_tools"


class _KindIn(msgspec.Struct):
    type: str


_kind = msgspec.json.Decoder(_KindIn)
_function = msgspec.json.Decoder(FunctionIn)
_namespace = msgspec.json.Decoder(NamespaceIn)
_members = msgspec.json.Decoder(dict[str, Raw])
_anything = msgspec.json.Decoder()

Wire = tuple[str | UnsetType, str]
"""A function on the wire: its namespace and its name."""


def identity(namespace: str | UnsetType | None, name: str) -> str:
    """The one name the engine and the model know a function by. A namespace has no dot, so no two pairs share one."""
    return f"{namespace}.{name}" if namespace else name


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSet:
    """``offered``: those the model may call. ``shown``: the declarations a Response repeats."""

    offered: tuple[Tool, ...] = ()
    forced: str | None = None
    single_call: bool = False
    names: Mapping[str, Wire] = field(default_factory=dict)
    shown: tuple[Raw, ...] = ()
    dropped: tuple[str, ...] = ()

    def on_the_wire(self, name: str) -> Wire:
        """Namespace and name of the function that is known as ``name``."""
        return self.names.get(name, (UNSET, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Function:
    """A function that was declared. ``lead``: what its namespace says of itself."""

    wire: Wire
    members: Mapping[str, Raw]
    place: str
    lead: str = ""

    @property
    def identity(self) -> str:
        return identity(*self.wire)

    def tool(self, lead: str = "") -> Tool:
        """The definition as the prompt shows it: what was received, in received order."""
        shown = []
        for key, raw in self.members.items():
            text = bytes(raw).decode()
            if key not in SHOWN or text == "null":
                continue
            if key == "name":
                text = _json(self.identity)
            elif key == "description" and lead:
                text = _json(f"{lead}\n\n{msgspec.json.decode(text)}")
            shown.append(f'"{key}": {text}')
        if lead and bytes(self.members.get("description", b"null")) == b"null":
            shown.append(f'"description": {_json(lead)}')
        parameters = bytes(self.members.get("parameters", b"null")).decode()
        return Tool(
            name=self.identity,
            definition=f'{{"type": "function", "function": {{{", ".join(shown)}}}}}',
            parameters=None if parameters == "null" else parameters,
            place=self.place,
        )


def tool_set(body: PromptBody, *, lenient: bool) -> ToolSet:
    """The effective tools of a request. ApiError 400 for a definition or a choice that cannot be honoured; a lenient
    server drops such definitions, and honours ``parallel_tool_calls`` false by keeping the first call."""
    readers = [partial(_declared, raw, f"tools[{at}]", lenient) for at, raw in enumerate(body.tools or ())]
    kept, dropped = read_tools(readers, lenient=lenient)
    functions = [function for declared in kept for function in declared.functions]
    check_declared_names((one.identity, f"{one.place}.name") for one in functions)
    offered, forced = _Choice(functions, lenient).made(body.tool_choice)
    if body.parallel_tool_calls is False and offered and not lenient:
        text = f"An answer may call several of its {len(offered)} tools; 'parallel_tool_calls' must be true."
        raise not_supported("parallel_tool_calls", text)
    return ToolSet(
        offered=tuple(_with_leads(offered)),
        forced=forced,
        single_call=body.parallel_tool_calls is False,
        names={one.identity: one.wire for one in functions},
        shown=tuple(declared.raw for declared in kept),
        dropped=(*dropped, *(name for declared in kept for name in declared.dropped)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Declared:
    """One member of ``tools``."""

    raw: Raw
    functions: tuple[_Function, ...]
    dropped: tuple[str, ...] = ()


def _declared(raw: Raw, place: str, lenient: bool) -> _Declared:
    received = bytes(raw)
    # a struct skips what it does not know, and the prompt shows what was received
    decode_now(received, _anything, place=place)
    kind = decode_now(received, _kind, place=place).type
    if kind == "function":
        return _Declared(raw=raw, functions=(_read_function(received, place, UNSET, ""),))
    if kind == "namespace":
        return _read_namespace(raw, received, place, lenient)
    text = f"'{place}.type' must be function or namespace, but is {quoted(kind)}: the server runs no tools itself."
    raise UnsupportedTool("tool_type_not_supported", text, param=f"{place}.type", label=_label(received, kind))


def _read_namespace(raw: Raw, received: bytes, place: str, lenient: bool) -> _Declared:
    wire = decode_now(received, _namespace, place=place)
    if NAMESPACE.fullmatch(wire.name) is None:
        raise invalid_value(f"{place}.name", wire.name, "1 to 64 letters, digits, _ and -")
    readers = [
        partial(_read_member, member, f"{place}.tools[{at}]", wire.name, wire.description or "")
        for at, member in enumerate(wire.tools)
    ]
    functions, dropped = read_tools(readers, lenient=lenient)
    return _Declared(raw=raw, functions=tuple(functions), dropped=dropped)


def _read_member(raw: Raw, place: str, namespace: str, lead: str) -> _Function:
    received = bytes(raw)
    kind = decode_now(received, _kind, place=place).type
    if kind != "function":
        text = f"'{place}.type' must be function, but is {quoted(kind)}: the server runs no tools itself."
        raise UnsupportedTool("tool_type_not_supported", text, param=f"{place}.type", label=_label(received, kind))
    return _read_function(received, place, namespace, lead)


def _read_function(received: bytes, place: str, namespace: str | UnsetType, lead: str) -> _Function:
    wire = decode_now(received, _function, place=place)
    refuse_unsupported(wire, place)
    if wire.defer_loading:
        text = f"Tools are known from the start; '{place}.defer_loading' must be false, but is true."
        raise UnsupportedTool("defer_loading_not_supported", text, param=f"{place}.defer_loading", label=wire.name)
    if wire.allowed_callers is not None and "direct" not in wire.allowed_callers:
        where = f"{place}.allowed_callers"
        text = f"Only the model calls tools; '{where}' must hold direct, but is {quoted(wire.allowed_callers)}."
        raise UnsupportedTool("allowed_callers_not_supported", text, param=where, label=wire.name)
    return _Function(wire=(namespace, wire.name), members=_members.decode(received), place=place, lead=lead)


def _with_leads(functions: Sequence[_Function]) -> Iterator[Tool]:
    """A namespace's description goes with the first of its functions that is offered: a prompt lists functions only."""
    led: set[str | UnsetType] = set()
    for one in functions:
        namespace = one.wire[0]
        yield one.tool("" if namespace in led else one.lead)
        led.add(namespace)


class _Choice:
    """``tool_choice`` over the declared functions: those the model may call, and the one it has to."""

    def __init__(self, functions: Sequence[_Function], lenient: bool) -> None:
        self._functions = functions
        self._known = {one.wire: one for one in functions}
        self._lenient = lenient  # a choice may list what was dropped

    def made(self, wire: str | ToolChoiceIn | None) -> tuple[Sequence[_Function], str | None]:
        if wire is None or wire == "auto":
            return self._functions, None
        if wire == "none":
            return (), None
        if wire == "required":
            return self._required(self._functions, "tool_choice")
        if isinstance(wire, str):
            raise invalid_value("tool_choice", wire, CHOICES)
        if wire.type == "function":
            return self._functions, self._named(wire, "tool_choice").identity
        if wire.type == "allowed_tools":
            return self._allowed(wire)
        raise _not_chosen("tool_choice.type", wire.type, "function or allowed_tools")

    def _required(self, functions: Sequence[_Function], place: str) -> tuple[Sequence[_Function], str | None]:
        if not functions:
            raise ApiError("invalid_value", f"'{place}' asks for a call, but no tool can be called.", param=place)
        if len(functions) > 1:
            text = (
                f"'{place}' asks for a call of any of {len(functions)} tools; a call is forced only where one is left."
            )
            raise not_supported("tool_choice", text, param=place)
        return functions, functions[0].identity

    def _allowed(self, wire: ToolChoiceIn) -> tuple[Sequence[_Function], str | None]:
        if wire.mode not in ("auto", "required"):
            raise invalid_value("tool_choice.mode", wire.mode, "auto or required")
        if wire.tools is None:
            raise ApiError("missing_required_parameter", "'tool_choice.tools' is required.", param="tool_choice.tools")
        allowed = {self._listed(entry, f"tool_choice.tools[{at}]") for at, entry in enumerate(wire.tools)}
        functions = [one for one in self._functions if one.wire in allowed]
        return (functions, None) if wire.mode == "auto" else self._required(functions, "tool_choice.mode")

    def _listed(self, entry: AllowedIn, place: str) -> Wire | None:
        if self._lenient and (entry.type != "function" or _pair(entry) not in self._known):
            return None
        if entry.type != "function":
            raise _not_chosen(f"{place}.type", entry.type, "function")
        return self._named(entry, place).wire

    def _named(self, entry: AllowedIn | ToolChoiceIn, place: str) -> _Function:
        if entry.name is None:
            raise ApiError("missing_required_parameter", f"'{place}.name' is required.", param=f"{place}.name")
        found = self._known.get(_pair(entry))
        if found is None:
            where = f" of namespace {quoted(entry.namespace)}" if entry.namespace is not None else ""
            raise invalid_value(f"{place}.name", entry.name, f"the name of a function{where} in 'tools'")
        return found


def _not_chosen(place: str, value: str, accepted: str) -> ApiError:
    text = f"Only functions can be chosen; '{place}' must be {accepted}, but is {quoted(value)}."
    return not_supported("tool_choice", text, param=place)


def _pair(entry: AllowedIn | ToolChoiceIn) -> Wire:
    return (UNSET if entry.namespace is None else entry.namespace, entry.name or "")


def _label(received: bytes, kind: str) -> str:
    """What a definition that is dropped is called: its name where it has one, else its type."""
    name = _anything.decode(received).get("name")
    return name if isinstance(name, str) and name else kind


def _json(value: str) -> str:
    return msgspec.json.encode(value).decode()
