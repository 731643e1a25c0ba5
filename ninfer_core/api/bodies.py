"""JSON request bodies: decoded by msgspec, refused in our own words with place, value and what would be accepted.

Imported through ``ninfer_core.api.http``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from ninfer_core import json_scan
from ninfer_core.errors import ApiError

T = TypeVar("T")

THREAD_BYTES = 128 << 10  # larger bodies are decoded outside the event loop's thread
QUOTE_BYTES = 1 << 20  # a refusal quotes the offending value of bodies up to this size
QUOTE_CHARACTERS = 80


class LargeBody(Protocol):
    """A body that is not in this process's memory: one of many MiB."""

    size: int  # bytes

    async def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """As ``decode``, in a process of its own. The decoder's type must be a class that a module names; its long
        strings must be plain ``str`` or ``Raw``."""


Body = bytes | LargeBody
"""What ``HttpRequest.body`` is. Frontends hand it on to ``decode`` and ``beside`` and never look inside."""

WORDS = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
BOUNDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}

AT = re.compile(r"^(?P<what>.*?)(?: - at (?P<in_key>`key` in )?`(?P<path>\$.*)`)?$", re.DOTALL)
EXPECTED = re.compile(
    r"^Expected `(?P<types>[^`]+)`(?: of length)?(?: (?P<sign><=|>=|<|>) (?P<bound>\S+))?(?:, got .*)?$"
)
UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.+)`$", re.DOTALL)
MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
NON_ASCII = re.compile(r"[^\x00-\x7f]+")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")


async def decode(body: Body, decoder: msgspec.json.Decoder[T]) -> T:
    """``body`` as the decoder's type; ApiError 400 with ``param`` for anything else."""
    if not isinstance(body, bytes):
        return await body.decode(decoder)
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(_decode_large, body, decoder)
    return decode_now(body, decoder)


def decode_now(body: bytes, decoder: msgspec.json.Decoder[T], *, place: str = "") -> T:
    """As ``decode``, in this thread. ``place``: ``body`` is the part of a decoded body at this place."""
    value = decode_unchecked(body, decoder, place=place)
    if not place:
        json_scan.check(body)
    return value


def _decode_large(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    json_scan.check_containers(body)
    return decode_now(body, decoder)


def decode_unchecked(body: bytes, decoder: msgspec.json.Decoder[T], *, place: str = "", quote: bool = True) -> T:
    """As ``decode_now``, without ``json_scan.check``. ``quote``: refusals may repeat what ``body`` holds."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse_value(body if quote else b"", str(error), place)
    except RecursionError:
        name = f"'{place}'" if place else "The request body"
        raise ApiError("invalid_json", f"{name} is nested too deeply.", param=place or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_json(body, str(error), place)


async def beside(body: Body, work: Callable[[], T]) -> T:
    """``work()`` over what a body held: on a thread for a large one, whose conversion would hold up every stream."""
    if isinstance(body, bytes) and len(body) <= THREAD_BYTES:
        return work()
    return await asyncio.to_thread(work)


def quoted(value: object) -> str:
    """A value of the client's as JSON in ASCII; a long one is cut, and its length said."""
    try:
        spelled = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return "not representable"
    if len(spelled) <= QUOTE_CHARACTERS:
        return NON_ASCII.sub(_escaped, spelled)
    size = f"{len(value)} characters" if isinstance(value, str) else f"{len(spelled)} characters of JSON"
    return f"{NON_ASCII.sub(_escaped, spelled[:QUOTE_CHARACTERS])}... ({size})"


def _escaped(run: re.Match[str]) -> str:
    """As JSON escapes it."""
    units = run[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def invalid_value(param: str, value: object, accepted: str) -> ApiError:
    """The refusal of a value of the right type: names place, value and what would be accepted."""
    return ApiError("invalid_value", f"'{param}' must be {accepted}, but is {quoted(value)}.", param=param)


def not_supported(field: str, why: str, *, param: str | None = None) -> ApiError:
    """The refusal of a capability this server does not have: ``<field>_not_supported``."""
    return ApiError(f"{field}_not_supported", why, param=param or field)


def _refuse_json(body: bytes, what: str, place: str) -> NoReturn:
    if place:
        raise ApiError("invalid_json", f"'{place}' is not valid JSON.", param=place) from None
    if not body.strip():
        raise ApiError("invalid_json", "The request body is empty; it must be a JSON object.") from None
    at = re.search(r"\(byte (\d+)\)", what)
    if at is not None:
        raise ApiError("invalid_json", f"The request body is not valid JSON at byte {at[1]}.") from None
    # msgspec says "truncated" of half a surrogate pair too, and not where
    json_scan.scan(body)
    raise ApiError("invalid_json", "The request body is not valid JSON.") from None


def _refuse_value(body: bytes, said: str, around: str) -> NoReturn:
    found = AT.match(said)
    assert found is not None  # every text matches
    what, path = found["what"], found["path"] or "$"
    place, in_every, _ = f"{around}{path.removeprefix('$')}".removeprefix(".").partition("[...]")
    missing = MISSING.match(what)
    if missing is not None:
        param = f"{place}.{missing['field']}" if place else missing["field"]
        raise ApiError("missing_required_parameter", f"'{param}' is required.", param=param) from None
    name = f"'{place}'" if place else "The request body"
    unknown = UNKNOWN.match(what)
    if unknown is not None:
        field = unknown["field"][:QUOTE_CHARACTERS]
        param = f"{place}.{field}" if place else field
        raise ApiError("unknown_parameter", f"{name} has no member {quoted(field)}.", param=param) from None
    if in_every:
        name = f"Every value of {name}"
    accepted, is_type = _accepted(what)
    if found["in_key"]:
        name = f"Every name in {name}"
    value = msgspec.UNSET if found["in_key"] else _value_at(body, path)
    but = "" if value is msgspec.UNSET or not place else f", but is {quoted(value)}"
    text = f"{name} must be {accepted}{but}." if accepted else f"{name} is not valid{but.replace(', but is', ':')}."
    raise ApiError("invalid_type" if is_type else "invalid_value", text, param=place or None) from None


def _accepted(what: str) -> tuple[str, bool]:
    """What msgspec would have taken, in words, and whether the type was wrong rather than the value."""
    if "out of range" in what:
        return "a number that fits 64 bits", False
    expected = EXPECTED.match(what)
    if expected is None:
        return "", False
    types = [name for name in expected["types"].split(" | ") if name != "null"] or ["null"]
    accepted = " or ".join(WORDS.get(name, "of another type") for name in types)
    if expected["sign"] is None:
        return accepted, True
    bound = expected["bound"].removesuffix(".0")
    if " of length " in what:
        if (expected["sign"], bound) == (">=", "1"):
            return f"{accepted} that is not empty", False
        unit = "characters" if types == ["str"] else "members"
        return f"{accepted} of {BOUNDS[expected['sign']]} {bound} {unit}", False
    if bound == "0" and expected["sign"] == ">=":
        return f"{accepted} that is not negative", False
    return f"{accepted} of {BOUNDS[expected['sign']]} {bound}", False


def _value_at(body: bytes, path: str) -> Any:
    """The value msgspec refused, UNSET when it cannot be shown."""
    if len(body) > QUOTE_BYTES:
        return msgspec.UNSET
    try:
        value = msgspec.json.decode(body)
        for field, index, any_member in STEP.findall(path):
            if any_member:
                return msgspec.UNSET
            value = value[field] if field else value[int(index)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return msgspec.UNSET
    return value
