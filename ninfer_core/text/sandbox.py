"""The jinja2 environment of chat templates: sandboxed, immutable, bounded in time and size.

Bounded: the text one rendering produces, and every string, list and number it builds on the way (``bounds.py``), before
it is built; and the wall clock (``MAX_SECONDS``). The clock is looked at in every turn of a loop,
call, operator, filter, concatenation and piece of output; what runs between two looks works on bounded values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from . import bounds
from .bounds import TemplateTooLarge, check_size
from .provenance import Marks
from .tojson import to_json

MAX_SECONDS = 5.0


class TemplateRaised(Exception):
    """The template's own ``raise_exception``."""


@dataclass(kw_only=True, slots=True)
class Rendering:
    """What one rendering may use, and its marks."""

    marks: Marks
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    written: int = 0  # characters of output so far
    sizes: bounds.Sizes = field(default_factory=bounds.Sizes)

    def look(self) -> None:
        if time.monotonic() > self.deadline:
            raise TemplateTooLarge(f"it took longer than {MAX_SECONDS:g} s")

    def read(self, value: Any) -> Any:
        """A value some function built: within bounds, and with its marks recognised."""
        if isinstance(value, str):
            check_size(str.__len__(value))
            return self.marks.read(value)
        if isinstance(value, bounds.CONTAINERS):
            check_size(len(value))
        elif isinstance(value, int) and value.bit_length() > bounds.MAX_BITS:
            raise TemplateTooLarge("it computes with a number that is too large")
        return value


_rendering: ContextVar[Rendering] = ContextVar("rendering")


@contextmanager
def rendering(limits: Rendering) -> Iterator[Rendering]:
    """The rendering that templates of this thread belong to."""
    token = _rendering.set(limits)
    try:
        yield limits
    finally:
        _rendering.reset(token)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment Hugging Face templates are written for: trimmed blocks, loop controls, ``generation`` blocks,
    ``raise_exception``, ``strftime_now`` and a ``tojson`` that keeps member order and non-ASCII text."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock], cache_size=0
        )
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        for name in ("urlize", "wordwrap", "pprint", "xmlattr", "random"):
            del self.filters[name]
        self.filters = {name: _bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = _bounded_filter("tojson", to_json)
        self.globals |= {"raise_exception": _raise, "strftime_now": _clock(now), "namespace": ChatNamespace}

    def compile_chat(self, source: str) -> Any:
        """A template whose loops and macros look at the clock; jinja2.TemplateSyntaxError when it does not parse."""
        tree = _Bounding().visit(self.parse(source))
        code = self.compile(tree, name="chat_template", filename="chat_template")
        return self.template_class.from_code(self, code, self.make_globals(None))

    def tick(self) -> str:
        _rendering.get().look()
        return ""

    def built(self, value: Any) -> Any:
        """A list, tuple or dict that the template writes."""
        _rendering.get().sizes.check(value)
        return value

    def concat(self, parts: Iterable[str]) -> str:
        limits = _rendering.get()
        limits.look()
        pieces: list[str] = []
        size = 0
        for piece in parts:
            size += str.__len__(piece)
            check_size(size)
            pieces.append(piece)
        joined: str = limits.read("".join(pieces))
        return joined

    def tilde(self, *parts: Any) -> str:
        """``a ~ b``."""
        return self.concat([str(part) for part in parts])

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        limits = _rendering.get()
        limits.look()
        args = bounds.call(function, args, kwargs)
        if args or kwargs:
            held = [value for value in (*args, *kwargs.values()) if isinstance(value, bounds.CONTAINERS)]
            if held:
                limits.sizes.check(*held)
        return limits.read(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits = _rendering.get()
        limits.look()
        bounds.binop(operator, left, right)
        result = limits.read(super().call_binop(context, operator, left, right))
        if isinstance(result, bounds.CONTAINERS):
            limits.sizes.of_binop(operator, left, right, result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``format`` and ``format_map`` of a string: bounded, and of its text without marks."""
        target = getattr(value, "__self__", None)
        if not isinstance(target, str) or getattr(value, "__name__", "") not in ("format", "format_map"):
            return None
        # the arguments keep their marks; the pattern is the template's in all but absurd templates
        wrapped: Callable[..., str] | None = super().wrap_str_format(getattr(str.__str__(target), value.__name__))
        return wrapped


class ChatNamespace(Namespace):
    """jinja2's ``namespace``. It can change after it is part of something, so its text does not hold what it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class GenerationBlock(Extension):
    """``{% generation %}``: transformers marks the assistant's part with it; rendering is not affected."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounding(NodeTransformer):
    """Puts a look at the clock into every loop and macro, and makes ``~``, lists, tuples and dicts bounded calls."""

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> Any:  # noqa: N802
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> Any:  # noqa: N802
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        return self._call(node, "tilde", node.nodes)

    def visit_List(self, node: nodes.List) -> Any:  # noqa: N802
        return self._building(node)

    def visit_Dict(self, node: nodes.Dict) -> Any:  # noqa: N802
        return self._building(node)

    def visit_Tuple(self, node: nodes.Tuple) -> Any:  # noqa: N802
        return self._building(node) if node.ctx == "load" else self.generic_visit(node)

    def _building(self, node: Any) -> Any:
        """One of constants is as large as the template's own text."""
        if all(isinstance(item, nodes.Const) for item in node.items):
            return node
        self.generic_visit(node)
        return self._call(node, "built", [node])

    def _ticking(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call(node, "tick", []), lineno=node.lineno))
        return node

    def _call(self, node: nodes.Node, method: str, args: list[Any]) -> Any:
        """A call of the environment's."""
        return nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None, lineno=node.lineno)


def _raise(message: Any = "") -> None:
    raise TemplateRaised(str(message))


def _clock(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if len(pattern) > 200 or re.search(r"%[^A-Za-z%]*\d", pattern):
            raise TemplateTooLarge("strftime_now takes a short pattern without widths")
        return now().strftime(pattern)

    return strftime_now


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with bounded arguments and result. What it wants passed in (context, environment) comes first."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        limits = _rendering.get()
        limits.look()
        args = (*args[:skip], *bounds.filter(name, args[skip:], kwargs))
        if name in ("batch", "slice"):
            fill = args[skip + 2] if len(args) > skip + 2 else kwargs.get("fill_with")
            count = args[skip + 1] if len(args) > skip + 1 else kwargs.get("linecount", kwargs.get("slices", 1))
            limits.sizes.check(fill, times=count if isinstance(count, int) else 1)
        result = limits.read(function(*args, **kwargs))
        if isinstance(result, bounds.CONTAINERS):
            limits.sizes.check(result)
        return result

    return bounded
