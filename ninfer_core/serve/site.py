"""The routes of all opened frontends and of the core: what a path leads to, and in whose envelope it answers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from ninfer_core.api import ApiError, Frontend, FrontendContext, HttpResponse, ProtocolFrontend, Route
from ninfer_core.api.http import error_response
from ninfer_core.errors import InternalError, MethodNotAllowed, NotFound, PluginConflict
from ninfer_core.plugins import CORE, Plugins

log = structlog.get_logger()

SHOWN = 200  # characters of a path that a refusal repeats
PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """Who answers: how refusals are rendered, and under which header a request's id is returned."""

    owner: str
    envelope: Callable[[ApiError, str], HttpResponse] = error_response
    request_id_header: str = "x-request-id"

    def refuse(self, error: ApiError, request_id: str) -> HttpResponse:
        """``error`` in this desk's envelope; a broken envelope answers as the core would."""
        try:
            return self.envelope(error, request_id)
        except Exception as broken:
            log.error("envelope_failed", frontend=self.owner, error=type(broken).__name__)
            return error_response(InternalError(), request_id)


CORE_DESK = Desk(owner=CORE)


@dataclass(kw_only=True, slots=True)
class Place:
    """All methods of one path. ``pattern`` matches it whole; its groups are the path parameters."""

    pattern: re.Pattern[str]
    desk: Desk
    routes: dict[str, Route] = field(default_factory=dict)

    @property
    def allowed(self) -> list[str]:
        """Methods that are answered: GET brings HEAD, and OPTIONS tells this list."""
        own = list(self.routes)
        return [*own, *(m for m in (["HEAD"] if "GET" in own else []) + ["OPTIONS"] if m not in own)]

    def route(self, method: str, path: str) -> Route:
        """The route of ``method``; MethodNotAllowed."""
        found = self.routes.get(method) or self.routes.get("GET" if method == "HEAD" else "")
        if found is None:
            raise MethodNotAllowed(method, path, self.allowed)
        return found


class Site:
    """Immutable once built. Two frontends that offer one route stop the start (PluginConflict).

    A path without parameters wins over a pattern, a pattern with more fixed text over one with less.
    """

    def __init__(self, frontends: Sequence[tuple[str, Frontend]], own: Iterable[Route] = ()) -> None:
        self.routes: list[Route] = []
        self._fixed: dict[str, Place] = {}
        self._patterns: dict[str, Place] = {}
        self._prefixes: list[tuple[str, Desk]] = []
        for route in own:
            self._add(route, CORE_DESK)
        for name, frontend in frontends:
            desk = Desk(owner=name, envelope=frontend.envelope, request_id_header=frontend.request_id_header)
            self._prefixes += [(prefix.rstrip("/"), desk) for prefix in frontend.prefixes]
            for route in frontend.routes:
                self._add(route, desk)
        self._prefixes.sort(key=lambda entry: -len(entry[0]))
        self._ranked = [self._patterns[shape] for shape in sorted(self._patterns, key=_fixed_length, reverse=True)]

    def find(self, path: str) -> tuple[Place, dict[str, str]]:
        """The place of ``path`` and its parameters; NotFound ``route_not_found``."""
        found = self._match(path)
        if found is not None:
            return found
        shown = path if len(path) <= SHOWN else path[:SHOWN] + "..."
        near = self._near(path) if len(path) <= SHOWN else None
        hint = f" There is {near!r}." if near else ""
        raise NotFound("route_not_found", f"There is no route {shown!r} here.{hint}")

    def _match(self, path: str) -> tuple[Place, dict[str, str]] | None:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        for place in self._ranked:
            match = place.pattern.fullmatch(path)
            if match is not None:
                return place, match.groupdict()
        return None

    def _near(self, path: str) -> str | None:
        """A route that may have been meant: the same one below /v1, or one that is spelled much like it."""
        bare = path.removesuffix("/")
        for other in ("/v1" + bare, bare):
            if other in self._fixed:
                return other
        found = difflib.get_close_matches(path, list(self._fixed), n=1, cutoff=0.8)
        return found[0] if found else None

    def desk(self, path: str) -> Desk:
        """Who answers for ``path``: the route's own frontend, else the longest prefix, else the core."""
        found = self._match(path)
        if found is not None:
            return found[0].desk
        for prefix, desk in self._prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return desk
        return CORE_DESK

    def _add(self, route: Route, desk: Desk) -> None:
        shape = PARAMETER.sub(lambda found: f"{{{found[2] or ''}}}", route.path)
        places = self._patterns if "{" in shape else self._fixed
        place = places.setdefault(shape, Place(pattern=_pattern(route.path), desk=desk))
        if route.method in place.routes:
            raise PluginConflict("route", f"{route.method} {route.path}", place.desk.owner, desk.owner)
        place.routes[route.method] = route
        self.routes.append(route)


def _pattern(path: str) -> re.Pattern[str]:
    """``{name}`` is one step of a path, ``{name:path}`` one or more."""
    pieces, end = [], 0
    for found in PARAMETER.finditer(path):
        pieces += [re.escape(path[end : found.start()]), f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})"]
        end = found.end()
    return re.compile("".join([*pieces, re.escape(path[end:])]), re.DOTALL)


def _fixed_length(shape: str) -> int:
    return len(shape.replace("{:path}", "").replace("{}", ""))


def open_frontends(
    plugins: Plugins, wanted: Sequence[str] | None, context: FrontendContext
) -> list[tuple[str, Frontend]]:
    """Open the wanted frontends, all when None. Raises UnknownChoice, or StartupError naming a plugin that fails."""
    registry = plugins.protocol_frontends
    chosen: list[ProtocolFrontend] = (
        list(registry) if wanted is None else [plugins.choose(registry, name) for name in dict.fromkeys(wanted)]
    )
    opened = []
    for frontend in chosen:
        with plugins.blaming(registry, frontend.name, "open the frontend"):
            own = frontend.open(context)
            if not isinstance(own, Frontend):
                raise TypeError(f"it returned {own!r:.80}, which is no Frontend")
        opened.append((frontend.name, own))
    return opened
