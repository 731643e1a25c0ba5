"""What every protocol frontend must do, asked of its handlers directly: no socket, no server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from ninfer_core.api import (
    ApiError,
    ContextLengthExceeded,
    Frontend,
    HttpRequest,
    HttpResponse,
    NotFound,
    OptionValues,
    Overloaded,
    ProtocolFrontend,
    QueueTimeout,
    Route,
    Unavailable,
)
from ninfer_core.errors import InternalError, MethodNotAllowed, RequestTooLarge, Unauthorized

from .fakes import FakeContext, FakeEngine

REQUEST_ID = "req-1"
BROKEN_BODIES = {
    "empty": b"",
    "cut": b'{"model": "fake", ',
    "not-json": b"hello",
    "not-utf8": b'{"a": "\xff"}',
    "null": b"null",
    "number": b"7",
    "string": b'"x"',
    "list": b"[]",
    "deep": b"[" * 5000 + b"]" * 5000,
}
WRONG_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "x", "", [], [None], {}, {"x": 1}, [[]], [{"role": 1}])
REFUSALS = (
    ApiError("bad", "a value is bad", param="messages[0].content"),
    Unauthorized(),
    NotFound("model_not_found", "no such model"),
    MethodNotAllowed("PUT", "/x", ["POST"]),
    RequestTooLarge(1),
    ContextLengthExceeded(9000, 4096),
    Overloaded(),
    QueueTimeout(),
    Unavailable("model_loading"),
    InternalError(),
)


class ProtocolFrontendContract:
    """Subclass with ``frontend`` and ``bodies``.

    ``bodies``: for each POST path a body it answers with 2xx. One that holds ``model`` must refuse a model nobody
    serves; one that takes ``"stream": true`` is listed in ``streaming``. ``params`` fills path parameters.
    ``refusing``: POST paths that refuse whatever they are sent. ``statuses``: the refusals, by code, that leave with a
    status of this protocol's own. ``model_is_a_label``: the name of the model is the client's own and never refused.
    ``endless``: GET paths whose stream goes on until the server stops.
    """

    frontend: ClassVar[ProtocolFrontend]
    bodies: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    streaming: ClassVar[frozenset[str]] = frozenset()
    params: ClassVar[Mapping[str, str]] = {"model_id": "fake"}
    refusing: ClassVar[frozenset[str]] = frozenset()
    statuses: ClassVar[Mapping[str, int]] = {}
    model_is_a_label: ClassVar[bool] = False
    endless: ClassVar[frozenset[str]] = frozenset()

    def opened(self, engine: FakeEngine | None = None) -> Frontend:
        values = OptionValues({option.key: option.default for option in self.frontend.options}, frozenset())
        return self.frontend.open(FakeContext(engine or FakeEngine(), values))

    def test_routes_are_well_formed_and_unique(self) -> None:
        opened = self.opened()
        assert opened.routes
        keys = [(route.method, route.path) for route in opened.routes]
        assert len(keys) == len(set(keys)), "a route is declared twice"
        for route in opened.routes:
            assert route.method in ("GET", "POST", "PUT", "PATCH", "DELETE")
            assert route.path.startswith("/")
            assert not route.path.startswith("/v1/v1/"), "the core adds /v1/v1"
            assert any(route.path.startswith(prefix) for prefix in opened.prefixes), f"{route.path}: under no prefix"

    def test_the_request_id_header_is_a_header_name(self) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", self.opened().request_id_header)

    def test_every_post_route_has_a_good_body(self) -> None:
        paths = {route.path for route in self.opened().routes if route.method == "POST"}
        assert paths - self.refusing == set(self.bodies), "list a good body for every POST path in `bodies`"

    def test_routes_that_always_refuse_do(self) -> None:
        for route in self.opened().routes:
            if route.path in self.refusing:
                for body in (b"", b"{}", b"hello"):
                    self._refused(self._ask(route, body), route.path)

    @pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
    def test_the_envelope_renders_every_refusal(self, error: ApiError) -> None:
        response = self.opened().envelope(error, REQUEST_ID)
        assert response.status == self._status(error)
        assert response.stream is None
        body = msgspec.json.decode(response.body)
        assert isinstance(body, dict)
        assert error.message in response.body.decode(), "the message does not reach the client"
        if "retry-after" in error.headers:
            assert response.headers.get("retry-after") == error.headers["retry-after"]

    def test_good_bodies_are_answered(self) -> None:
        for route in self._posts():
            response = self._ask(route, self._body(route))
            assert 200 <= response.status < 300, f"{route.path}: {response.status} {response.body!r}"
            if response.media_type == "application/json":
                msgspec.json.decode(response.body)

    def test_broken_bodies_are_refused_in_the_own_envelope(self) -> None:
        for route in self._posts():
            for name, body in BROKEN_BODIES.items():
                self._refused(self._ask(route, body), f"{route.path} with a body that is {name}")

    def test_wrong_types_are_answered_or_refused_but_never_raise(self) -> None:
        for route in self._posts():
            good = self.bodies[route.path]
            for key in good:
                for value in WRONG_VALUES:
                    body = msgspec.json.encode({**good, key: value})
                    response = self._ask(route, body)
                    what = f"{route.path} with {key} = {value!r}"
                    if response.status >= 300:
                        self._refused(response, what)

    def test_a_missing_member_is_answered_or_refused_but_never_raises(self) -> None:
        for route in self._posts():
            for key in self.bodies[route.path]:
                body = {name: value for name, value in self.bodies[route.path].items() if name != key}
                response = self._ask(route, msgspec.json.encode(body))
                if response.status >= 300:
                    self._refused(response, f"{route.path} without {key}")

    def test_an_unknown_model_is_not_found(self) -> None:
        for route in self._posts():
            if "model" in self.bodies[route.path]:
                body = msgspec.json.encode({**self.bodies[route.path], "model": "no-such-model"})
                response = self._ask(route, body)
                if not self.model_is_a_label:
                    assert response.status == 404, f"{route.path}: {response.status}"
                    assert b"no-such-model" in response.body, f"{route.path}: the refusal does not name the model"
                else:
                    assert response.status < 300, f"{route.path}: {response.status}"

    def test_get_routes_answer(self) -> None:
        for route in self.opened().routes:
            if route.method == "GET":
                assert self._ask(route, b"").status < 500, route.path

    def test_endless_streams_end_with_the_server(self) -> None:
        for route in self.opened().routes:
            if route.path in self.endless:
                context = FakeContext(FakeEngine(), OptionValues({}, frozenset()))
                opened = self.frontend.open(context)

                async def listen(
                    opened: Frontend = opened, route: Route = route, context: FakeContext = context
                ) -> None:
                    response = await answer(opened, same_route(opened, route), self.params, b"")
                    assert response.stream is not None, f"{route.path}: no stream"
                    assert await anext(response.stream), f"{route.path}: an empty chunk"
                    context.stopped.set()
                    async with asyncio.timeout(10):
                        await delivered(opened, response)

                asyncio.run(listen())

    @pytest.mark.parametrize("error", [Overloaded(), QueueTimeout(), ContextLengthExceeded(9000, 4096), Unavailable()])
    def test_a_refusal_of_the_engine_keeps_its_status(self, error: ApiError) -> None:
        for route in self._generating():
            body = self._body(route, stream=route.path in self.streaming)
            response = self._ask(route, body, FakeEngine(refusal=error))
            assert response.status == self._status(error), route.path

    def test_a_failure_of_an_aggregate_keeps_its_status(self) -> None:
        for route in self._generating():
            response = self._ask(route, self._body(route), FakeEngine(failure=Unavailable()))
            assert response.status == 503, route.path

    def test_streams_end_by_themselves_even_when_the_engine_fails(self) -> None:
        for route in self._generating():
            if route.path in self.streaming:
                for engine in (FakeEngine(), FakeEngine(failure=Unavailable())):
                    response = self._stream(route, engine)
                    assert response.status == 200
                    assert response.body, f"{route.path}: the stream says nothing"
                    assert engine.running == 0, f"{route.path}: the generation was not closed"

    def test_a_stream_left_early_cancels_its_generation(self) -> None:
        for route in self._generating():
            if route.path in self.streaming:
                engine = FakeEngine(pieces=["x"] * 50)
                self._stream(route, engine, at_most=2)
                assert engine.running == 0, f"{route.path}: the generation was not closed"
                assert len(engine.cancelled) == 1, f"{route.path}: the generation was not cancelled"

    def _status(self, error: ApiError) -> int:
        return self.statuses.get(error.code or "", error.status)

    def _posts(self) -> list[Route]:
        routes = self.opened().routes
        return [route for route in routes if route.method == "POST" and route.path not in self.refusing]

    def _generating(self) -> list[Route]:
        """The POST routes that make the engine generate."""
        out = []
        for route in self._posts():
            engine = FakeEngine()
            self._ask(route, self._body(route), engine)
            if engine.jobs:
                out.append(route)
        return out

    def _body(self, route: Route, *, stream: bool = False) -> bytes:
        return msgspec.json.encode({**self.bodies[route.path], **({"stream": True} if stream else {})})

    def _refused(self, response: HttpResponse, what: str) -> None:
        # 501: what the operator has not turned on
        assert 400 <= response.status < 500 or response.status == 501, f"{what}: {response.status} {response.body!r}"
        assert response.stream is None
        shape = msgspec.json.decode(self.opened().envelope(REFUSALS[0], REQUEST_ID).body)
        body = msgspec.json.decode(response.body)
        assert isinstance(body, dict), f"{what}: {response.body!r}"
        assert set(shape) <= set(body) | {"param"}, f"{what}: {response.body!r} is not the own envelope"

    def _ask(self, route: Route, body: bytes, engine: FakeEngine | None = None) -> HttpResponse:
        """The route's answer as a client sees it, a stream as its joined chunks."""
        opened = self.opened(engine)

        async def ask() -> HttpResponse:
            first = 1 if route.path in self.endless else None
            response = await answer(opened, same_route(opened, route), self.params, body)
            return await delivered(opened, response, at_most=first)

        return asyncio.run(ask())

    def _stream(self, route: Route, engine: FakeEngine, *, at_most: int | None = None) -> HttpResponse:
        """The streamed answer as a client sees it that leaves after ``at_most`` chunks."""
        opened = self.opened(engine)

        async def ask() -> HttpResponse:
            body = self._body(route, stream=True)
            response = await answer(opened, same_route(opened, route), self.params, body)
            assert response.stream is not None, f"{route.path}: no stream"
            return await delivered(opened, response, at_most=at_most)

        return asyncio.run(ask())


def same_route(opened: Frontend, route: Route) -> Route:
    """The route of another opening of the frontend."""
    return next(r for r in opened.routes if (r.method, r.path) == (route.method, route.path))


async def delivered(opened: Frontend, response: HttpResponse, *, at_most: int | None = None) -> HttpResponse:
    """Drive a stream as the core does: what fails before the first chunk is an ordinary refusal, what fails later ends
    the stream with ``late_error``."""
    if response.stream is None:
        return response
    chunks: list[bytes] = []
    try:
        async for chunk in response.stream:
            assert isinstance(chunk, bytes)
            assert chunk, "an empty chunk"
            chunks.append(chunk)
            if len(chunks) == at_most:
                break
    except ApiError as error:
        if not chunks:
            return opened.envelope(error, REQUEST_ID)
        assert response.late_error is not None, "the stream cannot say how it ended"
        chunks.append(response.late_error(error))
    finally:
        await response.stream.aclose()  # type: ignore[attr-defined]
    return HttpResponse(status=response.status, body=b"".join(chunks), media_type=response.media_type)


async def answer(opened: Frontend, route: Route, params: Mapping[str, str], body: bytes) -> HttpResponse:
    """One request the way the core hands it over: a refusal that a handler raises leaves in the envelope."""
    names = re.findall(r"\{(\w+)(?::\w+)?\}", route.path)
    path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: params[found[1]], route.path)
    request = HttpRequest(
        method=route.method,
        path=path,
        params={name: params[name] for name in names},
        query={},
        headers={"content-type": "application/json"},
        body=body,
        request_id=REQUEST_ID,
    )
    try:
        return await route.handler(request)
    except ApiError as error:
        return opened.envelope(error, request.request_id)
