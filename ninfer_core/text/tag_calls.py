"""Tool calls written as tags: the Qwen form, and what agent harnesses write.

    <tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>

A call is ``<function=NAME>``, ``<function name="NAME">`` or ``<invoke name="NAME">``, bare or inside ``<tool_call>`` or
``<function_calls>``; a parameter is ``<parameter=NAME>``, ``<parameter name="NAME">`` or ``<param name="NAME">``. Every
tag is closed by its own kind.

Values have no escape. Inside one, a tag that opens a parameter of the same kind has to be closed again; both are text.
The tag that closes the value itself is one only before ``<`` or the end of the output, white space aside; before
anything else it is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ninfer_core.api.tools import Argument, ToolFallback, Unreadable, WrittenCall

MAX_NAME = 256  # characters
_CONTAINERS = {"<tool_call>": "</tool_call>", "<function_calls>": "</function_calls>"}
_SPACE = re.compile(r"[ \t\r\n]*")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
_NAME_BEGUN = re.compile(r'[^<>"\r\n]*"?')

Chain = Any
"""A list grown at its end and shared by copies: None, or (all before, last)."""


class _Kind(NamedTuple):
    """The ways to open one kind of tag, and what closes it."""

    openings: tuple[tuple[str, str], ...]  # what stands before the name, and behind it
    opening: re.Pattern[str]
    close: str
    inside: re.Pattern[str]  # what counts inside it: its own tags


def _kind(*heads: tuple[str, str], close: str) -> _Kind:
    names = rf'[^<>="\r\n]{{1,{MAX_NAME}}}'
    forms = "|".join(f"{re.escape(head)}({names}){re.escape(tail)}" for head, tail in heads)
    return _Kind(heads, re.compile(forms), close, re.compile(f"({re.escape(close)})|{forms}"))


_CALLS = (
    _kind(("<function=", ">"), ('<function name="', '">'), close="</function>"),
    _kind(('<invoke name="', '">'), close="</invoke>"),
)
_PARAMETERS = (
    _kind(("<parameter=", ">"), ('<parameter name="', '">'), close="</parameter>"),
    _kind(('<param name="', '">'), close="</param>"),
)
_LONGEST_TAG = MAX_NAME + max(len(head) for kind in (*_CALLS, *_PARAMETERS) for head, _ in kind.openings) + 2


@dataclass(frozen=True, slots=True)
class TagToolSyntax:
    """``api.ToolSyntax`` of the tags; prompts and forced calls use the Qwen form."""

    markers: tuple[str, ...] = (*_CONTAINERS, *(head for kind in _CALLS for head, _ in kind.openings))

    tokens: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def opener(self, name: str) -> str:
        return "<tool_call>\n<function=" + name + ">\n"

    def region(self, names: Set[str]) -> TagRegion:
        return TagRegion(names)


class _At(Enum):
    OUTSIDE = "between elements"
    CONTAINER = "inside a container, between calls"
    CALL = "inside a call, between parameters"
    VALUE = "inside a value"
    CLOSING = "inside a value, behind a tag that closes it unless text follows"


class TagRegion:
    """``api.RegionReader`` of the tags: a machine over what is fed, with a part of a tag held."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._at = _At.OUTSIDE
        self._held = ""  # the beginning of a tag, at most _LONGEST_TAG characters
        self._offset = 0  # of what is held, from the region's start
        self._container: str | None = None  # what closes it
        self._calls: Chain = None  # complete ones of the open element
        self._kind = _CALLS[0]
        self._name = ""
        self._arguments: Chain = None
        self._parameter = ""
        self._value_kind = _PARAMETERS[0]
        self._value: Chain = None
        self._before: Chain = None  # the value up to a tag that may close it
        self._depth = 0  # open parameter tags, the value's own included
        self._resume = 0  # behind the opening of the call that is open
        self.opened = False
        self.failure: Unreadable | None = None

    def copy(self) -> TagRegion:
        twin = TagRegion.__new__(TagRegion)
        twin.__dict__.update(self.__dict__)  # a copy a token: faster than naming them
        return twin

    def feed(self, text: str) -> Sequence[WrittenCall]:
        complete: list[WrittenCall] = []
        if self.failure is not None:
            return complete
        buffer, at = self._held + text, 0
        while self.failure is None:
            after = self._step(buffer, at, complete)
            if after is None:
                break
            at = after
        if self._at is not _At.VALUE:
            # a value has put aside what may be the beginning of a tag
            begun = len(buffer) if self._at is _At.CLOSING else _after_space(buffer, at)
            self._hold(buffer, begun)
        return complete

    def finish(self) -> None:
        if self.failure is not None:
            return
        if self._at is _At.CLOSING:
            self._end_value()
        if self._at is _At.VALUE:
            self._fail(self._offset, f"the parameter {self._parameter!r} is not closed with {self._value_kind.close}")
        elif self._at is _At.CALL:
            self._fail(self._offset, f"it is not closed with {self._kind.close}")
        elif self._at is _At.CONTAINER:
            self._fail(self._offset, f"{self._container} is missing")
        elif self._held:
            self._fail_outside(self._offset)

    def unfinished(self) -> Sequence[WrittenCall]:
        return _items(self._calls)

    def closing(self) -> str | None:
        outer = self._container or ""
        if self.failure is not None or self._at is _At.VALUE or self._at is _At.OUTSIDE:
            return None
        if self._at is _At.CONTAINER:
            missing = outer if self._calls is not None else ""
        else:
            missing = self._kind.close + outer
        if not missing or not missing.startswith(self._held):
            return None
        return missing[len(self._held) :]

    # ------------------------------------------------------------------ steps

    def _step(self, buffer: str, at: int, complete: list[WrittenCall]) -> int | None:
        """Read one thing; where the next begins, or None when more text or nothing at all has to come first."""
        if self._at is _At.VALUE:
            return self._read_value(buffer, at)
        begin = _after_space(buffer, at)
        if self._at is _At.CLOSING:
            return self._decide_closing(buffer, at, begin)
        if begin == len(buffer):
            return None
        if self._at is _At.OUTSIDE:
            return self._open_element(buffer, begin)
        if self._at is _At.CONTAINER:
            return self._inside_container(buffer, begin, complete)
        return self._inside_call(buffer, begin, complete)

    def _open_element(self, buffer: str, at: int) -> int | None:
        for tag, close in _CONTAINERS.items():
            if buffer.startswith(tag, at):
                self._container, self._at = close, _At.CONTAINER
                return at + len(tag)
        if (after := self._open_call(buffer, at)) is not None:
            return after
        if self.failure is None and not _pending(buffer, at, _CONTAINERS, _CALLS):
            self._fail_outside(self._offset + at)
        return None

    def _inside_container(self, buffer: str, at: int, complete: list[WrittenCall]) -> int | None:
        assert self._container is not None
        if buffer.startswith(self._container, at) and self._calls is not None:
            after = at + len(self._container)
            self._container = None
            self._end_element(complete)
            return after
        if (inside := self._open_call(buffer, at)) is not None:
            return inside
        if self.failure is None and not _pending(buffer, at, (self._container,), _CALLS):
            reason: ToolFallback = "malformed_structure" if self._calls is None else "trailing_content"
            self._fail(self._offset + at, f"something other than a call stands before {self._container}", reason)
        return None

    def _open_call(self, buffer: str, at: int) -> int | None:
        for kind in _CALLS:
            if found := kind.opening.match(buffer, at):
                name = _name_in(found)
                self._resume = self._offset + found.end()
                if name not in self._names:
                    reason: ToolFallback = "undeclared_tool" if _TOOL_NAME.fullmatch(name) else "invalid_tool_name"
                    self._fail(self._resume, "it is not a call to one of the tools", reason)
                    return None
                self._kind, self._name, self._arguments = kind, name, None
                self._at, self.opened = _At.CALL, True
                return found.end()
        return None

    def _inside_call(self, buffer: str, at: int, complete: list[WrittenCall]) -> int | None:
        if buffer.startswith(self._kind.close, at):
            self._calls = (self._calls, WrittenCall(name=self._name, arguments=tuple(_items(self._arguments))))
            self._at = _At.CONTAINER
            if self._container is None:
                self._end_element(complete)
            return at + len(self._kind.close)
        for kind in _PARAMETERS:
            if found := kind.opening.match(buffer, at):
                self._value_kind, self._parameter = kind, _name_in(found)
                self._at, self._value, self._depth = _At.VALUE, None, 1
                return found.end()
        if not _pending(buffer, at, (self._kind.close,), _PARAMETERS):
            wanted = f"expected <parameter=NAME> or {self._kind.close}"
            if self._arguments is not None:
                wanted += f" after {self._parameter!r}; a value cannot hold a closing tag with markup behind it"
            self._fail(self._offset + at, wanted)
        return None

    def _read_value(self, buffer: str, at: int) -> int | None:
        found = self._value_kind.inside.search(buffer, at)
        if found is None:
            begun = buffer.rfind("<", max(at, len(buffer) - _LONGEST_TAG))
            if begun < 0 or not _pending(buffer, begun, (self._value_kind.close,), (self._value_kind,)):
                begun = len(buffer)
            self._value = _add(self._value, buffer[at:begun])
            self._hold(buffer, begun)
            return None
        if found[1] is None:
            self._depth += 1
        elif self._depth > 1:
            self._depth -= 1
        else:
            self._before = _add(self._value, buffer[at : found.start()])
            self._value, self._at = _add(self._before, found[0]), _At.CLOSING
            return found.end()
        self._value = _add(self._value, buffer[at : found.end()])
        return found.end()

    def _decide_closing(self, buffer: str, at: int, begin: int) -> int | None:
        """``begin`` is the first character that is not white space."""
        self._value = _add(self._value, buffer[at:begin])
        if begin == len(buffer):
            return None
        if buffer[begin] == "<":
            self._end_value()
        else:
            self._at = _At.VALUE
        return begin

    def _end_value(self) -> None:
        text = "".join(_items(self._before))
        self._arguments = (self._arguments, Argument(name=self._parameter, text=_without_frame(text)))
        self._at, self._value, self._before = _At.CALL, None, None

    def _end_element(self, complete: list[WrittenCall]) -> None:
        complete += _items(self._calls)
        self._calls, self._at = None, _At.OUTSIDE

    def _fail_outside(self, at: int) -> None:
        if self.opened:
            self._fail(at, "text follows the calls", "trailing_content")
        else:
            self._fail(at, "no call begins here")

    def _fail(self, at: int, message: str, reason: ToolFallback = "malformed_structure") -> None:
        inside = self._name if self._at in (_At.CALL, _At.VALUE, _At.CLOSING) else None
        self.failure = Unreadable(
            reason=reason, message=message, at=at if inside is None else self._resume, inside=inside
        )

    def _hold(self, buffer: str, begun: int) -> None:
        """Keep the end of the buffer, a part of a tag that the next text may complete."""
        self._held, self._offset = buffer[begun:], self._offset + begun


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _pending(buffer: str, at: int, tags: Iterable[str], kinds: Sequence[_Kind]) -> bool:
    """Whether the buffer's end, from ``at``, may become one of the tags."""
    rest = buffer[at : at + _LONGEST_TAG + 1]
    if len(rest) > _LONGEST_TAG:
        return False
    if any(tag.startswith(rest) and tag != rest for tag in tags):
        return True
    for kind in kinds:
        for head, _ in kind.openings:
            if head.startswith(rest):
                return True
            named = len(rest) - len(head)
            if named <= MAX_NAME + 1 and rest.startswith(head) and _NAME_BEGUN.fullmatch(rest, len(head)):
                return True
    return False


def _name_in(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None)


def _without_frame(text: str) -> str:
    """A value without the line break that the form puts before and behind it."""
    return text.removeprefix("\n").removesuffix("\n")


def _add(chain: Chain, text: str) -> Chain:
    return (chain, text) if text else chain


def _items(chain: Chain) -> list[Any]:
    out = []
    while chain is not None:
        chain, item = chain
        out.append(item)
    return out[::-1]
