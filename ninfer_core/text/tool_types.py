"""Calls as written to calls as clients get them: parameter text becomes JSON of the declared type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ApiError
from ninfer_core.api.tools import MALFORMED_TOOL_CALL, Argument, GeneratedCall, Tool, Unreadable, WrittenCall

from .json_text import NotJson, read
from .prompt_json import PromptJson
from .tojson import to_json

Types = tuple[str, ...]
_COMPACT = (",", ":")
_KNOWN = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """A call with typed arguments, and what had to be done to them."""

    call: GeneratedCall
    omitted: int = 0  # empty text where a type other than string is declared
    mismatched: int = 0
    repeated: int = 0


class ToolTypes:
    """The tools of one request with the declared types of their parameters. Immutable.

    Only an explicit type of a top-level parameter counts. Without one, and where it admits a string, text stays text;
    any other type makes it JSON, strictly read and never coerced. What is not JSON stays text, and so does a JSON
    string, which the type rules out. ApiError ``invalid_value`` for a schema that is not a JSON object.
    """

    def __init__(self, tools: Sequence[Tool], json: PromptJson) -> None:
        self._declared = {tool.name: _declared(tool, json) for tool in tools}
        self.names = frozenset(self._declared)

    def call(self, written: WrittenCall) -> Typed:
        """``written`` calls one of the tools. Of a parameter named twice the last value counts, in its first place."""
        declared = self._declared[written.name]
        values: dict[str, Argument] = {}
        for argument in written.arguments:
            values[argument.name] = argument
        members: list[str] = []
        omitted = mismatched = 0
        for name, argument in values.items():
            types = declared.get(name)
            if types is not None and not argument.is_json and not argument.text.strip():
                omitted += 1
                continue
            text, fits = _as_json(argument, types)
            members.append(f"{to_json(name)}:{text}")
            mismatched += not fits
        return Typed(
            call=GeneratedCall(name=written.name, arguments="{" + ",".join(members) + "}"),
            omitted=omitted,
            mismatched=mismatched,
            repeated=len(written.arguments) - len(values),
        )


def malformed_call(failure: Unreadable) -> GeneratedCall:
    """The call that tells the model what was wrong with its own."""
    text = f"The call could not be read: {failure.message}. Nothing was done. Write the complete call again."
    arguments = {"tool": failure.inside, "error": text}
    return GeneratedCall(name=MALFORMED_TOOL_CALL, arguments=to_json(arguments, separators=_COMPACT))


def _declared(tool: Tool, json: PromptJson) -> Mapping[str, Types]:
    """The parameters whose text is JSON."""
    if tool.parameters is None:
        return {}
    properties = json.object(tool.parameters, tool.place or "tools").value.get("properties")
    if properties is None:
        return {}
    if not isinstance(properties, dict):
        place = tool.place or "tools"
        raise ApiError("invalid_value", f"'{place}': 'properties' of the parameters must be an object.", param=place)
    found = {name: _types(schema) for name, schema in properties.items()}
    return {name: types for name, types in found.items() if types and "string" not in types}


def _types(schema: Any) -> Types:
    """The explicit types; none when a name among them is unknown."""
    given = schema.get("type") if isinstance(schema, dict) else None
    types: list[Any] = given if isinstance(given, list) else [given]
    return tuple(types) if all(isinstance(name, str) and name in _KNOWN for name in types) else ()


def _as_json(argument: Argument, types: Types | None) -> tuple[str, bool]:
    """The value as JSON text, and whether it is of one of ``types``."""
    if types is None and not argument.is_json:
        return to_json(argument.text), True
    try:
        value = read(argument.text.strip())
    except NotJson:
        return to_json(argument.text), False
    if isinstance(value, str) and not argument.is_json:
        return to_json(argument.text), False
    return to_json(value, separators=_COMPACT), types is None or any(_is(value, name) for name in types)


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int):
        return name in ("integer", "number")
    if isinstance(value, float):
        return name == "number" or (name == "integer" and value.is_integer())
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return name == kinds[type(value)]
