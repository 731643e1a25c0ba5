"""JSON a client or a model wrote: strict, and with the order of members and the spelling of numbers kept.

``1.0``, ``1E5`` and whole numbers of thirty digits come out of a template as they went in, so that a conversation sent
back unchanged renders to the prompt it had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_DEPTH = 128  # of objects and lists inside one another

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-0-9][-+.0-9eE]*|[\[\]{}]|true|false|null')
_NAMES: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_LARGEST_EXACT = 17  # digits of a number that certainly prints as it was written


class NotJson(Exception):
    """The text is not the JSON that is taken here; the message says why and completes "it "."""


class WrittenInt(int):
    """A whole number that prints as it was written."""

    written: str

    def __str__(self) -> str:
        return self.written

    __repr__ = __str__


class WrittenFloat(float):
    """A number that prints as it was written."""

    written: str

    def __str__(self) -> str:
        return self.written

    __repr__ = __str__


def read(text: str) -> Any:
    """The value. NotJson for anything RFC 8259 does not allow, and for what readers disagree about: a number that is
    not finite, half a surrogate pair, a member named twice, deep nesting."""
    try:
        msgspec.json.decode(text)
    except RecursionError:
        raise NotJson(f"is nested more than {MAX_DEPTH} levels deep") from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise NotJson(_reason(error)) from None
    # the grammar holds, so the tokens alone tell the structure: a string is a member's name where an object waits for
    # one, and everything between tokens is punctuation or white space
    return _build(_TOKEN.findall(text))


def read_object(text: str) -> dict[str, Any]:
    value = read(text)
    if not isinstance(value, dict):
        raise NotJson("is not an object")
    return value


def _build(tokens: list[str]) -> Any:
    out: list[Any] = []
    inside: list[Any] = [out]
    names: list[str | None] = [None]  # of the member whose value comes next; None: an object waits for a name
    for token in tokens:
        into = inside[-1]
        if token in "]}":
            inside.pop()
            names.pop()
            continue
        if names[-1] is None and isinstance(into, dict):
            name = _string(token)
            if name in into:
                raise NotJson(f"names the member {name[:80]!r} twice")
            names[-1] = name
            continue
        value = _value(token)
        if isinstance(into, dict):
            into[names[-1]] = value
            names[-1] = None
        else:
            into.append(value)
        if token in "[{":
            if len(inside) > MAX_DEPTH:
                raise NotJson(f"is nested more than {MAX_DEPTH} levels deep")
            inside.append(value)
            names.append(None)
    return out[0]


def _value(token: str) -> Any:
    first = token[0]
    if first == '"':
        return _string(token)
    if first == "{":
        return {}
    if first == "[":
        return []
    return _NAMES[token] if token in _NAMES else _number(token)


def _string(token: str) -> str:
    return msgspec.json.decode(token, type=str) if "\\" in token else token[1:-1]


def _number(token: str) -> int | float:
    if token.lstrip("-").isdecimal():
        whole = int(token)
        if str(whole) == token:
            return whole
        written = WrittenInt(whole)
        written.written = token
        return written
    number = float(token)
    if len(token) < _LARGEST_EXACT and repr(number) == token:
        return number
    spelled = WrittenFloat(number)
    spelled.written = token
    return spelled


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError) or "truncated" in str(error):
        # the library calls half of an escaped pair a truncated text
        return "is cut short, or holds half a surrogate pair"
    return f"is not JSON ({str(error).removeprefix('JSON is malformed: ')})"
