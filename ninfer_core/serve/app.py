"""Routing: every path of the site as one raw ASGI handler of a litestar application.

Litestar only finds the route. Bodies, responses and errors are ours, so that nothing on the wire has a framework's shape.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from litestar import Litestar, Request, Response
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from ninfer_core.api import ApiError, HttpRequest, HttpResponse, NotFound, Route
from ninfer_core.errors import MethodNotAllowed

from .site import Desk, Site
from .stream import ClientGone, as_api_error, read_body, send_stream, send_whole, while_connected

REQUEST_ID = "ninfer.request_id"  # scope key the door fills


def build_app(site: Site, *, max_request_mib: int) -> Litestar:
    """The application behind the door."""
    paths: dict[str, list[tuple[Route, Desk]]] = {}
    for route, desk in site.routes:
        paths.setdefault(route.path, []).append((route, desk))
    return Litestar(
        route_handlers=[_handler(path, Endpoint(entries, max_request_mib)) for path, entries in paths.items()],
        exception_handlers={Exception: _Unrouted(site)},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,
    )


def _handler(path: str, endpoint: Endpoint) -> ASGIRouteHandler:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await endpoint(scope, receive, send)

    return ASGIRouteHandler(path, copy_scope=False)(handle)


class Endpoint:
    """All methods of one path."""

    def __init__(self, entries: list[tuple[Route, Desk]], max_request_mib: int) -> None:
        self._entries = {route.method: (route, desk) for route, desk in entries}
        self._desk = entries[0][1]
        self._limit_mib = max_request_mib
        extra = [*(["HEAD"] if "GET" in self._entries else []), "OPTIONS"]
        self._allowed = [*self._entries, *(method for method in extra if method not in self._entries)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = scope["method"]
        entry = self._entries.get(method) or self._entries.get("GET" if method == "HEAD" else "")
        if entry is not None:
            route, desk = entry
            await self._exchange(route, desk, scope, receive, send)
        elif method == "OPTIONS":
            await send_whole(HttpResponse(status=204, headers={"allow": ", ".join(self._allowed)}), send)
        else:
            refusal = MethodNotAllowed(method, scope["path"], self._allowed)
            await send_whole(self._desk.refuse(refusal, scope[REQUEST_ID]), send)

    async def _exchange(self, route: Route, desk: Desk, scope: Any, receive: Any, send: Any) -> None:
        request_id = scope[REQUEST_ID]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        def refuse(error: ApiError) -> HttpResponse:
            return desk.refuse(error, request_id)

        try:
            body = b""
            if route.method != "GET":
                body = await read_body(receive, headers.get("content-length"), self._limit_mib)
        except ClientGone:
            return
        except ApiError as error:
            await send_whole(refuse(error), send)
            return
        request = HttpRequest(
            method=route.method,
            path=scope["path"],
            params={name: str(value).lstrip("/") for name, value in scope["path_params"].items()},
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers=headers,
            body=body,
            request_id=request_id,
        )
        await while_connected(receive, _answer(route, request, refuse, send))


async def _answer(route: Route, request: HttpRequest, refuse: Any, send: Any) -> None:
    try:
        response = await route.handler(request)
    except Exception as failure:
        response = refuse(as_api_error(failure))
    if response.stream is None:
        await send_whole(response, send)
    else:
        await send_stream(response, send, refuse)


class _Unrouted:
    """Answers what litestar itself refuses: no such path, a malformed Host, a fault."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, request: Request[Any, Any, Any], failure: Exception) -> Response[bytes]:
        scope: Any = request.scope
        status = getattr(failure, "status_code", 500)
        if status == 404:
            error: ApiError = NotFound("route_not_found", f"There is no route {scope['path']!r} here.")
        elif status < 500:
            error = ApiError("invalid_request", "The request line or its headers are malformed.")
        else:
            error = as_api_error(failure)
        answer = self._site.desk(scope["path"]).refuse(error, scope[REQUEST_ID])
        return Response(answer.body, status_code=answer.status, media_type=answer.media_type, headers=answer.headers)
