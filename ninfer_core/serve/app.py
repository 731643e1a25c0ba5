"""From a path to an answer: find the route, read the body, run the handler, send what it returns.

Plain ASGI without a framework: routing is all that one would do here, and nothing on the wire has a framework's shape.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from ninfer_core.api import ApiError, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import Body, quoted

from .bodies import BodyRoom, SpooledBody
from .site import Desk, Site
from .state import ServerState
from .stream import ClientGone, Receive, Send, as_api_error, awake, send_stream, send_whole, while_connected


class App:
    """Called by the door with the path it settled on. ApiErrors of routing are raised: the door renders them."""

    def __init__(self, site: Site, state: ServerState, bodies: BodyRoom) -> None:
        self._site = site
        self._ended = state.ended
        self._bodies = bodies

    async def __call__(self, scope: Any, path: str, request_id: str, receive: Receive, send: Send) -> None:
        method = scope["method"]
        place, params = self._site.find(path)
        if method == "OPTIONS" and "OPTIONS" not in place.routes:
            await send_whole(HttpResponse(status=204, headers={"allow": ", ".join(place.allowed)}), send)
            return
        route = place.route(method, path)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body: Body = b""
        if route.method != "GET":
            _check_encoding(headers.get("content-encoding", ""))
            try:
                body = await self._bodies.receive(lambda: awake(receive, self._ended), headers.get("content-length"))
            except ClientGone:
                return
        request = HttpRequest(
            method=route.method,
            path=path,
            params=params,
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers=headers,
            body=body,
            request_id=request_id,
        )
        try:
            await while_connected(receive, answer(route, request, place.desk, send))
        finally:
            if isinstance(body, SpooledBody):
                body.close()


def _check_encoding(named: str) -> None:
    """ApiError for a body that would have to be decompressed first."""
    if named.strip().lower() not in ("", "identity"):
        text = f"The request body is encoded as {quoted(named)}; it must be sent as it is, without content-encoding."
        raise ApiError("content_encoding_not_supported", text)


async def answer(route: Route, request: HttpRequest, desk: Desk, send: Send) -> None:
    """Run one handler and send its response, or its refusal in the desk's envelope."""

    def refuse(error: ApiError) -> HttpResponse:
        return desk.refuse(error, request.request_id)

    try:
        response = await route.handler(request)
    except Exception as failure:
        response = refuse(as_api_error(failure))
    if response.stream is None:
        await send_whole(response, send)
    else:
        await send_stream(response, send, refuse)
