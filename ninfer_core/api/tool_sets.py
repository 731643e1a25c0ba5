"""Tool definitions of a request, whatever its protocol: names, definitions that cannot be honoured, and the leniency
that drops those (``--lenient-tools``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from ninfer_core.errors import ApiError

from .bodies import invalid_value
from .jobs import ModelInfo
from .tools import MALFORMED_TOOL_CALL, Tool

T = TypeVar("T")
log = structlog.get_logger(__name__)

DROPPED_HEADER = "x-ninfer-dropped-tools"
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
NAME_WORDS = "1 to 128 letters, digits and _ - . : /"
SHOWN_NAMES = 32  # of the dropped tools, in the header and the log
SHOWN_CHARACTERS = 64  # of each


class UnsupportedTool(ApiError):
    """A well-formed tool definition that this server cannot honour. ``label`` is what the header calls it."""

    def __init__(self, code: str, message: str, *, param: str, label: str) -> None:
        super().__init__(code, message, param=param)
        self.label = label


def check_name(name: str, place: str) -> None:
    """ApiError 400 for a function name that no call syntax can spell."""
    if NAME.fullmatch(name) is None:
        raise invalid_value(place, name, NAME_WORDS)


def check_declared_names(named: Iterable[tuple[str, str]]) -> None:
    """``named``: each declared name and its place. ApiError 400 for a bad, a reserved or a repeated one."""
    seen: set[str] = set()
    for name, place in named:
        check_name(name, place)
        if name == MALFORMED_TOOL_CALL:
            text = f"'{place}' is {name}, the name under which a call that cannot be read is returned."
            raise ApiError("invalid_value", text, param=place)
        if name in seen:
            raise ApiError("invalid_value", f"'{place}' is {name}, which an earlier tool has.", param=place)
        seen.add(name)


def read_tools(readers: Iterable[Callable[[], T]], *, lenient: bool) -> tuple[list[T], tuple[str, ...]]:
    """What each reader makes of a definition, and the labels of those a lenient server drops.

    A strict one raises the first UnsupportedTool. A malformed definition is refused by both.
    """
    kept: list[T] = []
    dropped: list[str] = []
    for read in readers:
        try:
            kept.append(read())
        except UnsupportedTool as refusal:
            if not lenient:
                raise
            dropped.append(_printable(refusal.label))
    if dropped:
        log.warning("tools_dropped", count=len(dropped), tools=dropped[:SHOWN_NAMES])
    return kept, tuple(dropped)


def tool_headers(info: ModelInfo, offered: Sequence[Tool], dropped: Sequence[str] = ()) -> dict[str, str]:
    """The response header that names the tools the model does not see: ``dropped``, and those ``offered`` to a model
    whose template has no place for any. None when it sees them all."""
    hidden = [*dropped, *(() if info.shows_tools else (_printable(tool.name) for tool in offered))]
    if not hidden:
        return {}
    more = [f"and {len(hidden) - SHOWN_NAMES} more"] if len(hidden) > SHOWN_NAMES else []
    return {DROPPED_HEADER: ", ".join([*hidden[:SHOWN_NAMES], *more])}


def _printable(label: str) -> str:
    """A client's text as part of a header value."""
    return re.sub(r"[^A-Za-z0-9_.:/-]", "?", label)[:SHOWN_CHARACTERS]
