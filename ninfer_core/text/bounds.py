"""How large the values may be that a chat template builds. Each check runs before the value is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .provenance import plain

MAX_TEXT = 1 << 24  # characters of a string, items of a list
MAX_BUILT = 1 << 25  # characters of a value with all that is in it, ITEM for each item
ITEM = 16
MAX_BITS = 1 << 12  # of a whole number
MAX_COUNT = 100_000  # widths and counts given to filters and methods; also jinja2's bound of ``range``

Arguments = tuple[Any, ...]
CONTAINERS = (list, tuple, dict)
_SIZED = (str, bytes, list, tuple)
_COUNTED_FILTERS = ("batch", "center", "indent", "round", "slice", "truncate")


class TemplateTooLarge(Exception):
    """A template reached a bound; the text completes "The chat template was stopped: "."""


def check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise TemplateTooLarge(f"it writes more than {MAX_TEXT} characters")


class Sizes:
    """How large the lists, tuples and dicts of one rendering are with all that is in them. What is in one twice counts
    twice: writing and comparing it takes that long. Templates cannot change them once they are built."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}  # by id, with the value itself: its id stays its own

    def of(self, value: Any) -> int:
        if isinstance(value, str):
            return ITEM + str.__len__(value)
        if not isinstance(value, CONTAINERS):
            return ITEM
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        size = ITEM + sum(map(self.of, value))
        if isinstance(value, dict):
            size += sum(map(self.of, value.values()))
        return self._keep(value, size)

    def check(self, *values: Any, times: int = 1) -> None:
        """TemplateTooLarge unless all of them together, so many times, are within bounds."""
        if sum(map(self.of, values)) * times > MAX_BUILT:
            raise TemplateTooLarge("it builds a value that is too large")

    def of_binop(self, operator: str, left: Any, right: Any, result: Any) -> None:
        """Checks and keeps the size of a list that ``+`` or ``*`` has made, without looking at each item again."""
        if operator == "+":
            size = self.of(left) + self.of(right)
        else:
            size = ITEM + max(self.of(left), self.of(right)) * (len(result) // max(1, _items(left, right)))
        self._keep(result, size)
        self.check(result)

    def _keep(self, value: Any, size: int) -> int:
        self._known[id(value)] = (value, size)
        return size


def _items(left: Any, right: Any) -> int:
    return len(left) if isinstance(left, (list, tuple)) else len(right)


def binop(operator: str, left: Any, right: Any) -> None:
    """``+ * ** %``."""
    if operator == "+" and isinstance(left, _SIZED) and isinstance(right, _SIZED):
        check_size(len(left) + len(right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, _SIZED) and isinstance(times, int):
                check_size(len(value) * times)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    elif operator == "%" and isinstance(left, str):
        values = right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else (right,)
        _check_pattern(left, "%", values)


def call(function: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call, checked; a generator that is looked at becomes a list."""
    function = getattr(function, "__wrapped__", function)
    target, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(target, (str, bytes, int, float)):
        return args
    _check_counts((*args, *kwargs.values()))
    if isinstance(target, str):
        if name == "replace":
            _check_replace(target, args)
        elif name == "join":
            return _check_join(target, args)
        elif name == "expandtabs":
            tabs = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
            check_size(len(target) + target.count("\t") * max(tabs, default=8))
        elif name == "translate":
            table = args[0] if args and isinstance(args[0], Mapping) else {}
            check_size(len(target) * max((_length(value) for value in table.values()), default=1))
        elif name in ("format", "format_map"):
            given = args[0].values() if name == "format_map" and args and isinstance(args[0], Mapping) else args
            _check_pattern(target, "{", (*given, *kwargs.values()))
    return args


def filter(name: str, args: Arguments, kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a filter, its value first, checked."""
    if name in _COUNTED_FILTERS:
        _check_counts((*args[1:], *kwargs.values()))
    if name in ("int", "float"):
        return tuple(plain(value) for value in args)
    if name == "indent" and args:
        width = args[1] if len(args) > 1 else kwargs.get("width", 4)
        check_size(len(str(args[0])) + (str(args[0]).count("\n") + 1) * _length(width))
    elif name == "replace" and args:
        _check_replace(str(args[0]), (*args[1:], *kwargs.values()))
    elif name == "join" and args:
        separator = args[1] if len(args) > 1 else kwargs.get("d", "")
        return _check_join(str(separator), args)
    elif name == "format" and args:
        _check_pattern(str(args[0]), "%", (*args[1:], *kwargs.values()))
    return args


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateTooLarge("it computes with a number that is too large")


def _check_counts(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, (int, float)) and not -MAX_COUNT <= value <= MAX_COUNT:
            raise TemplateTooLarge(f"it gives a filter or method a number beyond {MAX_COUNT}")


def _check_replace(text: str, args: Arguments) -> None:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        old, new = args[:2]
        if len(new) > len(old):
            found = text.count(old) if old else len(text) + 1
            check_size(len(text) + found * len(new))


def _check_join(separator: str, args: Arguments) -> Arguments:
    """``args[0]`` as a list whose joined text is within bounds."""
    if not args or isinstance(args[0], (str, Mapping)):
        return args
    parts = []
    size = 0
    for part in args[0]:
        size += _length(part) + len(separator)
        check_size(size)
        parts.append(part)
    return (parts, *args[1:])


def _check_pattern(pattern: str, mark: str, values: Iterable[Any]) -> None:
    """A format pattern: each field is at most as long as its value and the widths written in the pattern."""
    values = list(values)
    widths = [min(len(digits), 9) and int(digits[:9]) for digits in re.findall(r"\d+", pattern)]
    if "*" in pattern or re.search(r"\{[^}]*\{", pattern):
        widths += [abs(int(value)) for value in values if isinstance(value, (int, float)) and abs(value) < 1e18]
    longest = max((_length(value) for value in values), default=0)
    check_size(len(pattern) + pattern.count(mark) * (max(widths, default=0) + longest))


def _length(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else len(value) if isinstance(value, str) else len(str(value))
