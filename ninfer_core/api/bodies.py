"""JSON request bodies: decoded by msgspec, refused in our own words with place, value and what would be accepted.

Imported through ``ninfer_core.api.http``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from ninfer_core.errors import ApiError

T = TypeVar("T")

THREAD_BYTES = 4 << 20  # larger bodies are decoded outside the event loop's thread
QUOTE_BYTES = 1 << 20  # a refusal quotes the offending value of bodies up to this size
QUOTE_CHARACTERS = 80

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

AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<in_key>key in )?(?P<path>\$.*)`)?$", re.DOTALL)
EXPECTED = re.compile(
    r"^Expected `(?P<types>[^`]+)`(?: of length)?(?: (?P<sign><=|>=|<|>) (?P<bound>\S+))?(?:, got .*)?$"
)
UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.+)`$", re.DOTALL)
MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")


async def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """``body`` as the decoder's type; ApiError 400 with ``param`` for anything else."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(decode_now, body, decoder)
    return decode_now(body, decoder)


def decode_now(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """As ``decode``, in this thread."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse_value(body, str(error))
    except RecursionError:
        raise ApiError("invalid_json", "The request body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse_json(body, str(error))


async def beside(body: bytes, work: Callable[[], T]) -> T:
    """``work()`` over what a body held: on a thread for a large one, whose conversion would hold up every stream."""
    return await asyncio.to_thread(work) if len(body) > THREAD_BYTES else work()


def quoted(value: object) -> str:
    """A value of the client's as JSON, cut to a readable length."""
    try:
        spelled = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return "not representable"
    return spelled if len(spelled) <= QUOTE_CHARACTERS else spelled[:QUOTE_CHARACTERS] + "..."


def invalid_value(param: str, value: object, accepted: str) -> ApiError:
    """The refusal of a value of the right type: names place, value and what would be accepted."""
    return ApiError("invalid_value", f"'{param}' must be {accepted}, but is {quoted(value)}.", param=param)


def not_supported(field: str, why: str, *, param: str | None = None) -> ApiError:
    """The refusal of a capability this server does not have: ``<field>_not_supported``."""
    return ApiError(f"{field}_not_supported", why, param=param or field)


def _refuse_json(body: bytes, what: str) -> NoReturn:
    if not body.strip():
        raise ApiError("invalid_json", "The request body is empty; it must be a JSON object.") from None
    at = re.search(r"\(byte (\d+)\)", what)
    if at is not None:
        raise ApiError("invalid_json", f"The request body is not valid JSON at byte {at[1]}.") from None
    if "UTF-8" in what or "utf-8" in what:
        raise ApiError("invalid_json", "The request body is not valid UTF-8.") from None
    # msgspec says "truncated" of a lone surrogate escape too
    raise ApiError("invalid_json", "The request body is not valid JSON: it ends early or holds half a surrogate pair.")


def _refuse_value(body: bytes, said: str) -> NoReturn:
    found = AT.match(said)
    assert found is not None  # every text matches
    what, path = found["what"], found["path"] or "$"
    place, in_every, _ = path.removeprefix("$").removeprefix(".").partition("[...]")
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
    value = _value_at(body, path)
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
