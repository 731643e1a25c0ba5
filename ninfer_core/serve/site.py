"""The routes of all opened frontends and of the core, and whose envelope a path answers in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from ninfer_core.api import ApiError, Frontend, FrontendContext, HttpResponse, ProtocolFrontend, Route
from ninfer_core.api.http import error_response
from ninfer_core.errors import InternalError, PluginConflict, StartupError
from ninfer_core.plugins import CORE, Plugins

log = structlog.get_logger()


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


class Site:
    """Immutable once built. Two frontends that offer one route stop the start (PluginConflict)."""

    def __init__(self, frontends: Sequence[tuple[str, Frontend]], own: Sequence[Route] = ()) -> None:
        self.routes: list[tuple[Route, Desk]] = [(route, CORE_DESK) for route in own]
        self._prefixes: list[tuple[str, Desk]] = []
        for name, frontend in frontends:
            desk = Desk(owner=name, envelope=frontend.envelope, request_id_header=frontend.request_id_header)
            self.routes += [(route, desk) for route in frontend.routes]
            self._prefixes += [(prefix.rstrip("/"), desk) for prefix in frontend.prefixes]
        self._prefixes.sort(key=lambda entry: -len(entry[0]))
        self._desks: dict[str, Desk] = {}
        taken: dict[tuple[str, str], str] = {}
        for route, desk in self.routes:
            key = (route.method, route.path)
            if key in taken:
                raise PluginConflict("route", " ".join(key), taken[key], desk.owner)
            taken[key] = desk.owner
            self._desks.setdefault(route.path, desk)

    def desk(self, path: str) -> Desk:
        """Who answers for ``path``: the route's own frontend, else the longest prefix, else the core."""
        exact = self._desks.get(path)
        if exact is not None:
            return exact
        for prefix, desk in self._prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return desk
        return CORE_DESK


def open_frontends(plugins: Plugins, wanted: Sequence[str] | None, context: FrontendContext) -> list[tuple[str, Frontend]]:
    """Open the wanted frontends, all when None. Raises UnknownChoice, or StartupError naming a plugin that fails."""
    registry = plugins.protocol_frontends
    chosen: list[ProtocolFrontend] = (
        list(registry) if wanted is None else [plugins.choose(registry, name) for name in dict.fromkeys(wanted)]
    )
    opened = []
    for frontend in chosen:
        try:
            opened.append((frontend.name, frontend.open(context)))
        except StartupError:
            raise
        except Exception as error:
            origin = registry.origin(frontend.name)
            text = f"frontend {frontend.name!r} of plugin {origin!r} cannot be opened: {type(error).__name__}: {error}"
            raise StartupError(text) from error
    return opened
