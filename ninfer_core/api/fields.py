"""The fields of a request body as one table: the struct that decodes it.

Each member of the struct says in its annotation what becomes of it, and both the refusals and the protocol's document
are made from that:

    class Body(msgspec.Struct, kw_only=True):
        ignored: ClassVar = (Ignored("user", "metadata", why="labels of the client's own"),)

        temperature: Annotated[Temperature | None, Used("0 to 2")] = None
        n: Annotated[int | None, Only(equal(1), values="1", why="One request gives one choice")] = None

Members of other names are skipped by the decoder.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer_core.errors import ApiError

from .bodies import quoted

SHOWN = 80  # characters of a client's key that a place repeats

Offence = tuple[str, Any]
"""A place in the body and the value there that asks for something."""

Check = Callable[[Any, str], Offence | None]
"""``check(value, place)``: what asks for something this server does not do; None when nothing does."""


@dataclass(frozen=True, slots=True)
class Used:
    """A field that has its effect. ``values``: what is accepted, for the document."""

    values: str


@dataclass(frozen=True, slots=True)
class Only:
    """A field accepted at values that ask for nothing; another one is refused as ``<field>_not_supported``.

    ``why`` is the guarantee that cannot be given, the beginning of a sentence. ``values`` is empty where the field has
    to be left out.
    """

    check: Check
    values: str
    why: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A field without effect here, whose type is checked all the same."""

    why: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """Fields that are not looked at."""

    names: tuple[str, ...]
    why: str

    def __init__(self, *names: str, why: str) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "why", why)


Treatment = Used | Only | Checked


def equal(*accepted: Any) -> Check:
    """One of these values."""
    return lambda value, place: None if value in accepted else (place, value)


def at_most_zero(value: Any, place: str) -> Offence | None:
    """A number that turns a control off by being zero or below."""
    return None if value <= 0 else (place, value)


def empty(value: Any, place: str) -> Offence | None:
    """An empty text, list or object."""
    return (place, value) if value else None


def left_out(value: Any, place: str) -> Offence | None:
    """No value at all."""
    return (place, value)


def every_member(check: Check) -> Check:
    """Each member of a list, each value of an object."""

    def members(value: Any, place: str) -> Offence | None:
        if isinstance(value, Mapping):
            pairs: Iterator[tuple[str, Any]] = ((f"{place}.{key[:SHOWN]}", one) for key, one in value.items())
        else:
            pairs = ((f"{place}[{at}]", one) for at, one in enumerate(value))
        return next((found for where, one in pairs if (found := check(one, where)) is not None), None)

    return members


def table(body: type[msgspec.Struct]) -> dict[str, Treatment]:
    """What becomes of each field, in declaration order. AssertionError for a field that does not say."""
    hints = typing.get_type_hints(body, include_extras=True)
    out: dict[str, Treatment] = {}
    for name in body.__struct_fields__:
        found = [note for note in getattr(hints[name], "__metadata__", ()) if isinstance(note, Treatment)]
        assert len(found) == 1, f"{body.__name__}.{name} does not say what becomes of it"
        out[name] = found[0]
    return out


def ignored(body: type[msgspec.Struct]) -> tuple[Ignored, ...]:
    """The body's ignored fields, its bases' included."""
    return tuple(entry for kind in body.__mro__ for entry in vars(kind).get("ignored", ()))


def refuse_unsupported(body: msgspec.Struct, place: str = "") -> None:
    """ApiError 400 for the first field that asks for what this server does not do; ``place`` is where the body lies."""
    for name, field in _restricted(type(body)):
        value = getattr(body, name)
        if value is None:
            continue
        offence = field.check(value, f"{place}.{name}" if place else name)
        if offence is not None:
            where, asked = offence
            way_out = f"must be {field.values}, but is {quoted(asked)}" if field.values else "has to be left out"
            code = field.code or f"{name}_not_supported"
            raise ApiError(code, f"{field.why}: '{where}' {way_out}.", param=where)


@functools.cache
def _restricted(body: type[msgspec.Struct]) -> tuple[tuple[str, Only], ...]:
    return tuple((name, field) for name, field in table(body).items() if isinstance(field, Only))


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """One route's body for the document. ``parts`` are the objects inside it, each with how it is named there."""

    route: str  # "POST /v1/completions"
    summary: str
    body: type[msgspec.Struct]
    parts: tuple[tuple[str, type[msgspec.Struct]], ...] = ()
    notes: tuple[str, ...] = ()  # paragraphs after the tables


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolDocument:
    """What ``docs/protocols/<plugin>.md`` is made from: ``DOCUMENT`` in the plugin's module ``document``."""

    title: str
    intro: str
    endpoints: tuple[Endpoint, ...]
