"""JSON text as chat templates write it: member order kept, the spelling of numbers kept, non-ASCII kept, ``", "`` and
``": "`` between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from .bounds import check_size
from .json_text import WrittenFloat, WrittenInt
from .provenance import Marked

_PLAIN = msgspec.json.Encoder()


class ClientObject(dict[Any, Any]):
    """An object that many prompts hold and nobody changes; its text is written once."""

    text: str | None = None  # as ``to_json`` writes it without further arguments


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` with the arguments and the text of transformers' one. TypeError for what is not JSON."""
    if isinstance(value, ClientObject) and not (ensure_ascii or indent is not None or separators or sort_keys):
        if value.text is None:
            value.text = _Writer(False, None, ", ", ": ", False).write(value, "\n")
        return value.text
    check_size(indent if isinstance(indent, int) else 0)
    step = " " * indent if isinstance(indent, int) else indent
    between, colon = separators or (", " if step is None else ",", ": ")
    return _Writer(ensure_ascii, step, between, colon, sort_keys).write(value, "\n")


class _Writer:
    def __init__(self, ensure_ascii: bool, step: str | None, between: str, colon: str, sort_keys: bool) -> None:
        self.ensure_ascii, self.step, self.between, self.colon = ensure_ascii, step, between, colon
        self.sort_keys = sort_keys

    def write(self, value: Any, line: str) -> str:
        """``line``: a line break and the indentation of this level."""
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Mapping):
            members = sorted(value.items()) if self.sort_keys else value.items()
            inner = line + (self.step or "")
            check_size(len(value) * len(self.colon))
            texts = [self._string(_key(key)) + self.colon + self.write(item, inner) for key, item in members]
            return self._block("{", texts, "}", line)
        if isinstance(value, (list, tuple)):
            inner = line + (self.step or "")
            return self._block("[", [self.write(item, inner) for item in value], "]", line)
        return _scalar(value)

    def _block(self, left: str, texts: list[str], right: str, line: str) -> str:
        if not texts:
            return left + right
        check_size(sum(map(len, texts)) + len(texts) * (len(self.between) + len(line) + len(self.step or "")))
        if self.step is None:
            return left + self.between.join(texts) + right
        inner = line + self.step
        return left + inner + (self.between + inner).join(texts) + line + right

    def _string(self, text: str) -> str:
        encoded = _PLAIN.encode(str.__str__(text)).decode()
        if not self.ensure_ascii:
            return encoded
        mark = text.mark if isinstance(text, Marked) else ""
        return "".join(char if char < "\x7f" or char == mark else _escaped(char) for char in encoded)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (WrittenInt, WrittenFloat)):
        return value.written
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _scalar(key)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
