"""Bodies as jobs: what a frontend over a fake engine makes of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ninfer_core.api import ApiError, ChatJob, HttpRequest, HttpResponse, OptionValues
from ninfer_core.testing import FakeContext, FakeEngine
from ninfer_openai.frontend import OpenAI

TURN: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


@pytest.fixture(scope="session")
def job() -> Callable[..., ChatJob]:
    """``job(body, **options)``: a chat body, or one turn with these fields where it has no messages."""

    def read(body: Any, **options: Any) -> ChatJob:
        if isinstance(body, dict) and "messages" not in body:
            body = {**TURN, **body}
        frontend = OpenAI(FakeContext(FakeEngine(), OptionValues(options, frozenset())))
        return asyncio.run(frontend.read_chat(encoded(body)))[1]

    return read


@pytest.fixture(scope="session")
def refusal(job: Callable[..., ChatJob]) -> Callable[..., tuple[str | None, str | None, str]]:
    """``refusal(body, **options)``: code, param and message of its 400."""

    def read(body: Any, **options: Any) -> tuple[str | None, str | None, str]:
        with pytest.raises(ApiError) as caught:
            job(body, **options)
        assert caught.value.status == 400
        return caught.value.code, caught.value.param, caught.value.message

    return read


@pytest.fixture(scope="session")
def post() -> Callable[..., HttpResponse]:
    """``post(path, body, engine, **options)``: the handler's answer; a stream is joined into its body."""

    def ask(path: str, body: Any, engine: FakeEngine | None = None, **options: Any) -> HttpResponse:
        context = FakeContext(engine or FakeEngine(), OptionValues(options, frozenset()))
        opened = OpenAI(context, clock=lambda: 1.0).frontend()
        handler = next(route.handler for route in opened.routes if route.path == path)
        request = HttpRequest(
            method="POST", path=path, params={}, query={}, headers={}, body=encoded(body), request_id="req_1"
        )

        async def answered() -> HttpResponse:
            response = await handler(request)
            if response.stream is not None:
                response.body = b"".join([chunk async for chunk in response.stream])
            return response

        return asyncio.run(answered())

    return ask


class Responses:
    """A frontend over a fake engine, whose stored Responses live as long as this does."""

    def __init__(self, engine: FakeEngine | None = None, **options: Any) -> None:
        self.engine = engine or FakeEngine()
        frontend = OpenAI(FakeContext(self.engine, OptionValues(options, frozenset())), clock=lambda: 1.0)
        self.store = frontend.responses.store
        self._opened = frontend.frontend()
        self._asked = 0

    def ask(self, method: str, path: str, body: Any = b"", **query: str) -> HttpResponse:
        """One exchange; a stream is joined into the body, an ApiError is in the envelope."""
        return asyncio.run(self.asked(method, path, body, **query))

    async def asked(self, method: str, path: str, body: Any = b"", **query: str) -> HttpResponse:
        self._asked += 1
        route, params = self._route(method, f"/v1/responses{path}")
        request = HttpRequest(
            method=method,
            path=path,
            params=params,
            query=query,
            headers={},
            body=encoded(body),
            request_id=f"req_{self._asked}",
        )
        try:
            response = await route.handler(request)
            if response.stream is not None:
                response.body = b"".join([chunk async for chunk in response.stream])
        except ApiError as error:
            return self._opened.envelope(error, request.request_id)
        return response

    def create(self, **body: Any) -> dict[str, Any]:
        """The Response object."""
        response = self.ask("POST", "", {"model": "fake", **body})
        assert response.status == 200, response.body
        return msgspec.json.decode(response.body)

    def job(self, **body: Any) -> ChatJob:
        """What the engine is asked for."""
        self.create(**{"input": "hi", **body})
        job = self.engine.jobs[-1]
        assert isinstance(job, ChatJob)
        return job

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, the shape of each frame checked."""
        response = self.ask("POST", "", {"model": "fake", "input": "hi", "stream": True, **body})
        assert response.status == 200, response.body
        return events_of(response.body)

    def refusal(self, method: str = "POST", path: str = "", **body: Any) -> tuple[int, str, str | None, str]:
        """Status, code, param and message."""
        response = self.ask(method, path, {"model": "fake", **body} if method == "POST" else b"")
        assert response.status >= 400, response.body
        error = msgspec.json.decode(response.body)["error"]
        return response.status, error["code"], error.get("param"), error["message"]

    def _route(self, method: str, path: str) -> tuple[Any, dict[str, str]]:
        """As the core finds it: a path without parameters wins."""
        for route in sorted(self._opened.routes, key=lambda route: route.path.count("{")):
            match = re.fullmatch(re.sub(r"\{(\w+)(?::path)?\}", r"(?P<\1>[^/]+)", route.path), path)
            if match is not None and route.method == method:
                return route, match.groupdict()
        raise AssertionError(f"no route {method} {path}")


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Decoded, with names and numbers checked."""
    events = []
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@pytest.fixture(scope="session")
def responses() -> type[Responses]:
    """``responses(engine, **options)``: a server of Responses."""
    return Responses
