"""The JSON of a directory: no duplicate members at any depth, no NaN, no lone surrogates, bounded nesting.

The standard parser is used because fast ones keep the last duplicate silently. What it would let through is
refused by its hooks; what it raises becomes one line.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from ninfer_core.errors import ArtifactError

from .names import quoted

MAX_NESTING = 64
LEAST, MOST = -(1 << 63), (1 << 64) - 1  # integers that other readers keep exactly


def parse_json(text: bytes, file: str) -> Any:
    """The value in ``text`` (UTF-8, no BOM, trailing spaces allowed); ArtifactError (rows 7, 8) otherwise."""

    def invalid(why: str) -> NoReturn:
        raise ArtifactError(f"{file}: directory is not valid JSON: {why}") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    raise ArtifactError(f"{file}: duplicate JSON member {quoted(name)}")
                seen.add(name)
        return found

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            invalid(f"number {digits[:40]} is out of range")
        return number

    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        invalid(f"byte {error.start} is not UTF-8")
    try:
        value = json.loads(
            decoded,
            object_pairs_hook=unique,
            parse_float=finite,
            parse_constant=lambda token: invalid(f"{token} is not a JSON number"),
        )
    except json.JSONDecodeError as error:
        invalid(f"{error.msg} at character {error.pos}")
    except RecursionError:
        invalid(f"nested deeper than {MAX_NESTING}")
    except ValueError:
        # the interpreter's own limit on the digits of an integer
        invalid("an integer has too many digits")
    return value


def check_open_value(value: Any, file: str, where: str, depth: int) -> None:
    """Bound a member whose content is free: its nesting, its integers, and text that can be written as UTF-8."""
    pending = [(value, depth)]
    while pending:
        item, level = pending.pop()
        if level > MAX_NESTING and isinstance(item, (dict, list)):
            raise ArtifactError(f"{file}: directory is not valid JSON: {where} is nested deeper than {MAX_NESTING}")
        if isinstance(item, dict):
            pending += [(child, level + 1) for child in item.values()]
            pending += [(name, level) for name in item]
        elif isinstance(item, list):
            pending += [(child, level + 1) for child in item]
        elif isinstance(item, str) and not is_utf8(item):
            raise ArtifactError(f"{file}: directory is not valid JSON: lone surrogate in {where}")
        elif isinstance(item, int) and not LEAST <= item <= MOST:
            raise ArtifactError(f"{file}: directory is not valid JSON: integer beyond 64 bits in {where}")


def is_utf8(text: str) -> bool:
    """Whether ``text`` holds whole characters only; JSON escapes can spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
