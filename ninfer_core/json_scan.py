"""JSON read strictly, without building values: what a decoder of typed structs does not look at, and where it is.

msgspec skips members no field asks for without reading their text, keeps the last of two members of one name, and has
no bound on how much a body may hold. ``check`` looks for all of that in a body msgspec has accepted; ``scan`` is the
definition, works on any buffer, and finds the long strings on its way.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from ninfer_core.errors import ApiError

MAX_DEPTH = 900  # msgspec's own bound is near 1000
MAX_CONTAINERS = 50_000  # objects and arrays of a body
MAX_DIGITS = 4300  # of a whole number: what Python converts
SHOWN_CHARACTERS = 80  # of a member's name
SLICE_BYTES = 1 << 20

_SPACE = rb"[ \t\n\r]*+"
_HEX = rb"[0-9a-fA-F]"
_GOOD = (
    rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF]' + _HEX + rb"{3}|[dD][0-7]" + _HEX + rb"{2}"
    rb"|[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2})))*+"
)
_STRING = rb'"' + _GOOD + rb'"'
_WHOLE = rb"-?+(?:0|[1-9][0-9]*+)"
_NUMBER = _WHOLE + rb"(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"

_space = re.compile(_SPACE)
_scalar = re.compile(rb"(?:(" + _STRING + rb")|(" + _NUMBER + rb")|true|false|null)" + _SPACE + rb"(,)?+" + _SPACE)
_open = re.compile(rb"([\[{])" + _SPACE)
_after = re.compile(rb"([,\]}])" + _SPACE)
_member = re.compile(rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE)
_wholes = re.compile(rb"(?:-?+(?:0|[1-9][0-9]{0,17}+)" + _SPACE + rb"," + _SPACE + rb")++")
_good = re.compile(rb'"' + _GOOD)
_half_pair = re.compile(rb"\\u[dD][89a-fA-F]" + _HEX + rb"{2}")


@dataclass(kw_only=True, slots=True)
class Scan:
    """What a text holds."""

    values: int = 0
    containers: int = 0  # objects and arrays, of these values
    spans: list[tuple[int, int]] = field(default_factory=list)  # long strings, quotes included, not members' names


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How much is read; ``request_too_complex`` beyond."""

    values: int | None = None
    containers: int | None = None


def check(body: bytes) -> None:
    """ApiError 400 for valid JSON that two readers could take for different things: members twice in an object, text
    that is no text, numbers that are none. ``body`` is what msgspec has accepted."""
    try:
        _quick.decode(body.decode())
    except (ValueError, RecursionError):
        # the scan says what and where; it decides
        scan(body)


def check_containers(body: bytes) -> None:
    """ApiError ``request_too_complex`` for a body of more objects and arrays than are read; they cost far more than
    their bytes."""
    # brackets in strings count here, so that a look is enough nearly always
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        scan(body, bounds=Bounds(containers=MAX_CONTAINERS))


def scan(data: Any, *, span_bytes: int | None = None, bounds: Bounds | None = None) -> Scan:
    """Read a whole text in any buffer; ApiError 400 for what is no JSON, or refused beside it (``check``).

    ``span_bytes``: list the strings of at least so many bytes.
    """
    check_utf8(data)
    return _Scanner(data, span_bytes, bounds).run()


def check_utf8(data: Any) -> None:
    """ApiError 400 for anything else. No text of the whole is built."""
    view, decoder = memoryview(data), codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(view), SLICE_BYTES):
            decoder.decode(view[at : at + SLICE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise ApiError("invalid_json", "The request body is not valid UTF-8.") from None
    finally:
        view.release()


class _Frame:
    """An open object or array, and where in it the reading is."""

    __slots__ = ("index", "keys", "name")

    def __init__(self, *, is_object: bool) -> None:
        self.keys: set[bytes] | None = set() if is_object else None
        self.name = b""
        self.index = 0


class _Scanner:
    """One reading. ``at`` is always where the next thing begins, white space passed over."""

    def __init__(self, data: Any, span_bytes: int | None, bounds: Bounds | None) -> None:
        self.data = data
        self.span_bytes = span_bytes if span_bytes is not None else len(data) + 1
        self.bounds = bounds
        self.found = Scan()
        self.stack: list[_Frame] = []

    def run(self) -> Scan:
        data, stack = self.data, self.stack
        at = _space.match(data).end()  # type: ignore[union-attr]
        while at >= 0:
            scalar = _scalar.match(data, at)
            if scalar is None:
                at = self._enter(at)
                continue
            self._look(scalar)
            at = scalar.end()
            if scalar[3] is None:
                at = self._leave(at)
            elif not stack:
                self._broken(scalar.start(3))
            elif stack[-1].keys is None:
                stack[-1].index += 1
                if scalar[2] is not None:
                    at = self._wholes(at)
            else:
                at = self._name(at)
        return self.found

    def _enter(self, at: int) -> int:
        """Into the object or array that begins here: to its first value, or past it when it has none."""
        opened = _open.match(self.data, at)
        if opened is None:
            self._broken(at)
        is_object = opened[1] == b"{"
        self.found.values += 1
        self.found.containers += 1
        self._bound()
        if len(self.stack) >= MAX_DEPTH:
            raise ApiError("invalid_json", "The request body is nested too deeply.")
        self.stack.append(_Frame(is_object=is_object))
        at = opened.end()
        if self.data[at : at + 1] == (b"}" if is_object else b"]"):
            return self._leave(at)
        return self._name(at) if is_object else at

    def _leave(self, at: int) -> int:
        """From the end of a value to the next one; -1 at the end of the text."""
        while self.stack:
            after = _after.match(self.data, at)
            if after is None:
                self._broken(at)
            frame = self.stack[-1]
            if after[1] != b",":
                if (after[1] == b"}") != (frame.keys is not None):
                    self._broken(at)
                self.stack.pop()
                at = after.end()
            elif frame.keys is None:
                frame.index += 1
                return after.end()
            else:
                return self._name(after.end())
        if at != len(self.data):
            self._broken(at)
        return -1

    def _name(self, at: int) -> int:
        """Past a member's name, which must be new in its object."""
        member = _member.match(self.data, at)
        if member is None:
            self._broken(at)
        frame = self.stack[-1]
        name = member[1][1:-1]
        if b"\\" in name:
            name = msgspec.json.decode(member[1], type=str).encode()
        frame.name = name
        assert frame.keys is not None
        if name in frame.keys:
            self._twice(name)
        frame.keys.add(name)
        return member.end()

    def _wholes(self, at: int) -> int:
        """Past further whole numbers of this array: a prompt may be a long list of them."""
        run = _wholes.match(self.data, at)
        if run is None:
            return at
        count = run[0].count(b",")
        self.stack[-1].index += count
        self.found.values += count
        self._bound()
        return run.end()

    def _look(self, scalar: re.Match[bytes]) -> None:
        self.found.values += 1
        if not self.found.values & 0xFFF:
            self._bound()
        begin, end = scalar.span(1)
        if end - begin >= self.span_bytes:
            self.found.spans.append((begin, end))
        elif scalar[2] is not None:
            self._number(scalar[2])

    def _number(self, spelled: bytes) -> None:
        whole = spelled.lstrip(b"-").isdigit()
        if len(spelled) > MAX_DIGITS if whole else math.isinf(float(spelled)):
            place = self._place(self.stack)
            name = f"'{place}'" if place else "The request body"
            raise ApiError("invalid_value", f"{name} must be a number that fits 64 bits.", param=place or None)

    def _bound(self) -> None:
        if self.bounds is None:
            return
        for what, have, most in (
            ("JSON values", self.found.values, self.bounds.values),
            ("objects and arrays", self.found.containers, self.bounds.containers),
        ):
            if most is not None and have > most:
                text = f"The request body holds more {what} than this server reads, which is {most}."
                raise ApiError("request_too_complex", text)

    def _twice(self, name: bytes) -> NoReturn:
        place = self._place(self.stack[:-1])
        where = f"'{place}'" if place else "The request body"
        quoted = msgspec.json.encode(_shown(name)).decode()
        raise ApiError("duplicate_member", f"{where} has the member {quoted} twice.", param=self._place(self.stack))

    def _place(self, frames: Sequence[_Frame]) -> str:
        """``messages[1].content`` of the value under way in the innermost of ``frames``."""
        steps = (f"[{f.index}]" if f.keys is None else f".{_shown(f.name)}" for f in frames)
        return "".join(steps).removeprefix(".")

    def _broken(self, at: int) -> NoReturn:
        string = _good.match(self.data, at)
        if string is not None and self.data[string.end() : string.end() + 1] != b'"':
            at = string.end()
            if _half_pair.match(self.data, at):
                text = f"The request body is not valid JSON at byte {at}: half a surrogate pair is not text."
                raise ApiError("invalid_json", text)
        if at >= len(self.data):
            raise ApiError("invalid_json", "The request body is not valid JSON: it ends early.")
        raise ApiError("invalid_json", f"The request body is not valid JSON at byte {at}.")


def _shown(name: bytes) -> str:
    text = name[: 4 * SHOWN_CHARACTERS + 4].decode("utf-8", "ignore")
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


class _Suspect(ValueError):
    """Something for the scan to look at."""


def _pairs(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({name for name, _ in pairs}) != len(pairs):
        raise _Suspect


def _real(spelled: str) -> None:
    if math.isinf(float(spelled)):
        raise _Suspect


# values are dropped as they are read; ``int`` refuses more than MAX_DIGITS digits
_quick = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_real)
