"""Tools: what a client declares, the calls of a conversation's history, the calls a model makes, and how a family
writes them.

Prompt-bearing JSON crosses this border as JSON *text*, as it was received: member order and the spelling of numbers
are part of the prompt, and so of what a cache can recognise. The core reads it (never Python's ``json``).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

MALFORMED_TOOL_CALL = "malformed_tool_call"
"""The reserved tool under whose name a call that could not be read is returned; its arguments say what went wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function the model may call.

    ``definition``: JSON text of the object the template lists, ``{"type": "function", "function": {"name": ...}}``.
    ``parameters``: JSON text of the parameters' schema, from which argument text gets its type; None: none declared.
    ``place`` names it in the request body ("tools[0]"). ``cache_boundary``: a hint as in ``Part``, for the end of this
    definition in the prompt.
    """

    name: str
    definition: str
    parameters: str | None = None
    place: str = ""
    cache_boundary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call an assistant turn of the history made. ``arguments``: JSON text of an object, as received.

    ``place`` names the arguments in the request body ("messages[1].tool_calls[0].function.arguments").
    """

    id: str
    name: str
    arguments: str = "{}"
    place: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedCall:
    """A call the model made. ``arguments``: JSON text of an object, strictly valid, members in the order written."""

    name: str
    arguments: str


ToolFallback = Literal["none", "malformed_structure", "invalid_tool_name", "undeclared_tool", "trailing_content"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReport:
    """How the tool markup of one answer was read: counters for the log, never its text."""

    marker_seen: bool = False  # a complete marker
    structured_calls: int = 0
    empty_arguments_omitted: int = 0  # empty text where a type other than string is declared
    mismatched_arguments: int = 0  # not of the declared type; kept for the client to judge
    duplicate_parameters_repaired: int = 0
    fallback: ToolFallback = "none"  # why the strict pass rejected a region
    forced_call_closed: bool = False  # the closing tags of a forced call were supplied
    recovered: bool = False  # a second pass still found calls
    recovered_call_count: int = 0
    malformed_call_reported: bool = False
    trailing_content_dropped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """One parameter of a call as the model wrote it.

    ``text`` gets the type the tool declares, unless ``is_json``: the syntax has types of its own and ``text`` is JSON.
    """

    name: str
    text: str
    is_json: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCall:
    """A complete call: its parameters in the order written, repeated ones included."""

    name: str
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """Where a region stopped being tool calls.

    ``at``: characters from the region's start; what follows them may hold another region. ``inside``: the call that
    was open, None between calls. ``message`` completes "The call could not be read: ", for the model.
    """

    reason: ToolFallback
    message: str
    at: int
    inside: str | None = None


class RegionReader(Protocol):
    """Reads tool calls from a marker on, text as it comes; the outcome does not depend on how the text is cut.

    A region is a run of complete elements with nothing but white space between them. An element is what a marker opens,
    a call or a container of calls, until that closes. ``copy`` costs the same however much was read.
    """

    @property
    def opened(self) -> bool:
        """The opening of a call to a declared tool was read."""

    @property
    def failure(self) -> Unreadable | None:
        """Set once; text fed after it is ignored."""

    def copy(self) -> RegionReader: ...

    def feed(self, text: str) -> Sequence[WrittenCall]:
        """The calls of every element that became complete."""

    def finish(self) -> None:
        """The output is over: whatever is still open becomes a failure."""

    def unfinished(self) -> Sequence[WrittenCall]:
        """The complete calls of the element that is not complete."""

    def closing(self) -> str | None:
        """The text that would complete the element, when nothing but closing marks of calls is missing."""


class ToolSyntax(Protocol):
    """How a family's models write tool calls. Immutable."""

    markers: tuple[str, ...]
    """Every text a region may begin with. None is the beginning of another."""
    tokens: tuple[str, ...]
    """The control tokens of the syntax: they are text to whoever reads calls, even where output withholds them."""

    def opener(self, name: str) -> str:
        """What a prompt ends with so that the answer continues inside a call to ``name``."""

    def region(self, names: Set[str]) -> RegionReader:
        """A reader of calls to the tools ``names``; it is fed the marker too."""
