"""The core's own routes: ``GET /health`` and the endpoint index ``GET /v1``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ninfer_core.api import FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import json_response


def own_routes(context: FrontendContext, routes: Callable[[], Iterable[Route]]) -> tuple[Route, ...]:
    """``routes``: every route of the site, for the index; called per request.

    A server that loads, stops or has failed answers 503 at the door, before these.
    """

    async def health(_request: HttpRequest) -> HttpResponse:
        return json_response({"status": "ok", "version": context.version})

    async def index(_request: HttpRequest) -> HttpResponse:
        endpoints = [{"method": r.method, "path": r.path, "summary": r.summary} for r in routes()]
        models = [engine.info.id for engine in context.engines()]
        return json_response({"object": "ninfer.index", "models": models, "endpoints": endpoints})

    return (
        Route(method="GET", path="/health", handler=health, summary="process health and build version"),
        Route(method="GET", path="/v1", handler=index, summary="this list"),
    )
