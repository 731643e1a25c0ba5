"""The core's own routes: health, live figures and the endpoint index ``GET /v1``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ninfer_core.api import HttpRequest, HttpResponse, Route, Unavailable
from ninfer_core.api.http import json_response

from .figures import Figures, take
from .load import load_report
from .metrics import MEDIA_TYPE, exposition
from .stats import stats_report

if TYPE_CHECKING:
    from .state import Context


def own_routes(context: Context, routes: Callable[[], Iterable[Route]]) -> tuple[Route, ...]:
    """``routes``: every route of the site, for the index; called per request.

    A server that loads, stops or has failed answers 503 at the door, before these.
    """

    async def index(_request: HttpRequest) -> HttpResponse:
        endpoints = [{"method": r.method, "path": r.path, "summary": r.summary} for r in routes()]
        models = [engine.info.id for engine in context.engines()]
        return json_response({"object": "ninfer.index", "models": models, "endpoints": endpoints})

    return (*watch_routes(context), Route(method="GET", path="/v1", handler=index, summary="this list"))


def watch_routes(context: Context) -> tuple[Route, ...]:
    """What a watchdog or a dashboard polls; ``--stats-port`` serves these and nothing else."""

    async def health(_request: HttpRequest) -> HttpResponse:
        return json_response({"status": "ok", "version": context.version})

    async def load(_request: HttpRequest) -> HttpResponse:
        return json_response(load_report(_figures(context)))

    async def stats(_request: HttpRequest) -> HttpResponse:
        return json_response(stats_report(_figures(context)))

    async def metrics(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=exposition(_figures(context)), media_type=MEDIA_TYPE)

    return (
        Route(method="GET", path="/health", handler=health, summary="process health and build version"),
        Route(method="GET", path="/v1/load", handler=load, summary="capacity, current load and token counters"),
        Route(method="GET", path="/stats", handler=stats, summary="the load report and every counter since startup"),
        Route(method="GET", path="/metrics", handler=metrics, summary="the same figures as Prometheus text"),
    )


def _figures(context: Context) -> Figures:
    engine = context.state.engine
    if engine is None:
        raise context.state.refusal() or Unavailable()
    return take(engine)
