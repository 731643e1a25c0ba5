"""Tool calls of an answer on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer_core.api import GeneratedCall


class _Input(msgspec.Struct):
    input: str


_input = msgspec.json.Decoder(_Input)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """The calls of one answer; those to a tool of ``custom`` go out in custom form."""

    answer_id: str
    custom: frozenset[str] = frozenset()

    def whole(self, index: int, call: GeneratedCall) -> dict[str, Any]:
        """A call of an aggregate answer."""
        kind, head, member, text = self._told(index, call)
        return {**head, kind: {"name": call.name, member: text}}

    def deltas(self, index: int, call: GeneratedCall) -> tuple[dict[str, Any], dict[str, Any]]:
        """A call of a stream: the opening with its name, then what it is given."""
        kind, head, member, text = self._told(index, call)
        opening = {"index": index, **head, kind: {"name": call.name, member: ""}}
        return opening, {"index": index, kind: {member: text}}

    def _told(self, index: int, call: GeneratedCall) -> tuple[str, dict[str, Any], str, str]:
        id = f"call_{self.answer_id}{index:04x}"
        if call.name in self.custom:
            return "custom", {"id": id, "type": "custom"}, "input", input_of(call.arguments)
        return "function", {"id": id, "type": "function"}, "arguments", call.arguments


def input_of(arguments: str) -> str:
    """The one text a custom tool is given; what was written instead, when the model did not name it ``input``."""
    try:
        return _input.decode(arguments).input
    except msgspec.DecodeError:
        return "" if arguments == "{}" else arguments
