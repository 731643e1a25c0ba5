"""An option is declared once, by whoever reads it; help text and ``docs/options.md`` are made from the declaration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One command-line option.

    A flag that takes no value has ``parse=None``: giving it sets True. ``parse`` turns one string into the value and
    raises ValueError with what would be accepted ("a whole number from 1 to 256").
    """

    flag: str  # "--kv-dtype"
    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str = ""
    default: Any = None
    default_text: str | None = None  # how the default reads when it is derived ("the model's own")
    choices_from: str | None = None  # a registry ("kv_dtypes") whose names are the choices
    repeatable: bool = False  # the value is then a tuple, in order
    aliases: tuple[str, ...] = ()
    hidden_in: tuple[str, ...] = ()  # commands that do not offer it: "serve", "run"
    secret: bool = False  # its value is never shown, in errors neither

    @property
    def key(self) -> str:
        """``--kv-dtype`` -> ``kv_dtype``."""
        return self.flag.removeprefix("--").replace("-", "_")


class OptionValues(Mapping[str, Any]):
    """The parsed options of one engine, by key, defaults filled in; ``given`` holds the keys the operator set,
    ``words`` how they were set, secrets left out."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str], words: tuple[str, ...] = ()) -> None:
        self._values = dict(values)
        self.given = given
        self.words = words

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number in ``[low, high]``."""
    accepted = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"

    def parse(value: str) -> int:
        if not value.isascii() or not value.lstrip("-").isdigit() or len(value) > 20:
            raise ValueError(accepted)
        number = int(value)
        if number < low or (high is not None and number > high):
            raise ValueError(accepted)
        return number

    return parse


def floating(low: float, high: float | None = None) -> Callable[[str], float]:
    """A finite number in ``[low, high]``."""
    accepted = f"a number from {low:g} to {high:g}" if high is not None else f"a number of at least {low:g}"

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(accepted) from None
        if not math.isfinite(number) or number < low or (high is not None and number > high):
            raise ValueError(accepted)
        return number

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """One of a few fixed words."""

    def parse(value: str) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return parse


def boolean(value: str) -> bool:
    """``on`` or ``off``."""
    if value not in ("on", "off"):
        raise ValueError("on or off")
    return value == "on"


def string(value: str) -> str:
    """Any non-empty text."""
    if not value:
        raise ValueError("a non-empty text")
    return value
