"""What holds for every request, whatever route it is for."""

from __future__ import annotations

import re

import msgspec
import pytest

from ninfer_core.api import Frontend, HttpRequest, HttpResponse, Route
from ninfer_core.serve.app import App
from ninfer_core.serve.bodies import BodyRoom
from ninfer_core.serve.door import Door, single_v1
from ninfer_core.serve.site import Site
from ninfer_core.serve.state import ServerState

LOADING = (
    b'{"error":{"message":"The model is still loading. Retry shortly.",'
    b'"type":"service_unavailable","code":"model_loading"}}'
)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def error(response):
    body = msgspec.json.decode(response.content)
    assert set(body) == {"error"}
    assert {"message", "type", "code"} <= set(body["error"])
    return body["error"]


@pytest.mark.contract("ready.503")
@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/chat/completions", "/completion", "/nope", "/v1/v1/models"]
)
@pytest.mark.parametrize(
    "method", [pytest.param(method, id=f"omlx-1884-{method}") for method in ("GET", "POST", "OPTIONS", "DELETE")]
)
def test_every_route_answers_503_while_the_model_loads(serve, method, path):
    response = serve(loading=True).get(method, path, b"not even json" if method == "POST" else None)
    assert response.status_code == 503
    assert response.content == LOADING
    assert response.headers["retry-after"] == "2"
    assert response.headers["x-ninfer-version"] == "1.2.3+test"
    assert response.headers["x-request-id"].startswith("req_")


def test_head_is_answered_503_without_a_body_while_loading(serve):
    response = serve(loading=True).get("HEAD", "/health")
    assert (response.status_code, response.content) == (503, b"")


@pytest.mark.contract("stop.refuses", "ready.unhealthy")
@pytest.mark.parametrize(
    "phase",
    [pytest.param("stopping", id="llama.cpp-14092-stopping"), pytest.param("failed", id="gpustack-6203-failed")],
)
def test_a_server_that_stops_or_has_failed_refuses_everything(serve, phase):
    site = serve()
    site.state.phase = phase
    for method, path in (("GET", "/health"), ("POST", "/v1/chat/completions")):
        response = site.get(method, path)
        assert response.status_code == 503
        assert error(response)["code"] == "service_unavailable"
        assert "retry-after" not in response.headers


def test_health_names_the_build(serve):
    assert serve().get("GET", "/health").json() == {"status": "ok", "version": "1.2.3+test"}


@pytest.mark.contract("http.index")
def test_the_index_lists_every_route_with_a_summary(serve):
    index = serve().get("GET", "/v1").json()
    assert index["models"] == ["fake"]
    listed = {(entry["method"], entry["path"]) for entry in index["endpoints"]}
    assert {("GET", "/health"), ("POST", "/v1/chat/completions"), ("POST", "/completion")} <= listed
    assert all(entry["summary"] for entry in index["endpoints"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/nope", 404),
        ("PUT", "/health", 405),
        ("OPTIONS", "/health", 204),
        ("POST", "/v1/chat/completions", 400),
        ("POST", "/v1/chat/completions/", 404),
    ],
)
@pytest.mark.contract("http.request-id")
def test_every_answer_carries_version_and_a_fresh_request_id(serve, method, path, status):
    site = serve()
    ids = set()
    for _ in range(3):
        response = site.get(method, path)
        assert response.status_code == status
        assert response.headers["x-ninfer-version"] == "1.2.3+test"
        ids.add(response.headers["x-request-id"])
    assert len(ids) == 3


@pytest.mark.contract("http.request-id")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_streams_carry_a_fresh_request_id_too(serve, path):
    site = serve()
    named = {"prompt": "hi"} if path == "/v1/completions" else CHAT
    body = {"model": "fake", "input": "hi"} if path == "/v1/responses" else named
    streams = [site.get("POST", path, {**body, "stream": True}) for _ in range(2)]
    assert all(one.headers["content-type"].startswith("text/event-stream") for one in streams)
    ids = [one.headers["x-request-id"] for one in streams]
    assert len(set(ids)) == 2
    assert all(id.startswith("req_") for id in ids)


@pytest.mark.parametrize(
    "path",
    ["/nope", "/v1/nope", "/v1/models/", "/v1//models", "//v1/models", "/v1/v1/v1/models", "/tokenize/x", "/", ""],
    ids=lambda path: f"framework-defaults-{path}",
)
def test_an_unknown_route_is_404_in_the_envelope(serve, path):
    response = serve().get("GET", f"http://127.0.0.1{path}")  # whole: a client reads //v1 as a host
    assert response.status_code == 404
    assert error(response)["code"] == "route_not_found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/chat/completions", "POST, OPTIONS"),
        ("HEAD", "/tokenize", "POST, OPTIONS"),
        ("PUT", "/v1/models/fake", "GET, HEAD, OPTIONS"),
        ("BREW", "/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_is_405_and_says_what_is_allowed(serve, method, path, allow):
    response = serve().get(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow
    if method != "HEAD":
        assert error(response)["code"] == "method_not_allowed"


def test_options_tells_the_methods(serve):
    response = serve().get("OPTIONS", "/v1/models")
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/fake", "/v1"])
def test_head_answers_where_get_does(serve, path):
    site = serve()
    head, get = site.get("HEAD", path), site.get("GET", path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.contract("http.double-v1")
def test_a_doubled_prefix_is_the_same_route(serve):
    site = serve()
    assert site.get("GET", "/v1/v1/models").content == site.get("GET", "/v1/models").content
    assert site.get("POST", "/v1/v1/chat/completions", CHAT).status_code == 200
    assert single_v1("/v1/v1x") == "/v1/v1x"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/tokenize"])
@pytest.mark.contract("media.too-large")
def test_a_body_over_the_limit_is_413(serve, path):
    response = serve(max_request_mib=1).get("POST", path, b" " * ((1 << 20) + 1))
    assert response.status_code == 413
    assert error(response)["code"] == "request_too_large"
    # at the limit the body is read, and then refused for what it says
    assert serve(max_request_mib=1).get("POST", path, b" " * (1 << 20)).status_code == 400


def test_a_body_of_undeclared_length_is_413_as_soon_as_it_is_too_long(serve):
    async def endless():
        while True:
            yield b" " * 65536

    import asyncio

    import httpx

    site = serve(max_request_mib=1)

    async def send():
        sent = 0

        async def counted():
            nonlocal sent
            async for chunk in endless():
                sent += len(chunk)
                yield chunk

        transport = httpx.ASGITransport(site.door)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.post("/completion", content=counted())
        return response, sent

    response, sent = asyncio.run(send())
    assert response.status_code == 413
    assert sent <= (1 << 20) + 2 * 65536


def broken_site(handler=None, envelope=None):
    async def fine(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(body=b"{}")

    def teapot(error, request_id):
        return HttpResponse(status=error.status, body=error.message.encode(), media_type="text/plain")

    route = Route(method="POST", path="/broken/{name}", handler=handler or fine)
    frontend = Frontend(
        routes=(route,), envelope=envelope or teapot, prefixes=("/broken",), request_id_header="request-id"
    )
    site = Site([("broken", frontend)])
    state = ServerState(phase="ready")
    return Door(App(site, state, BodyRoom(limit_mib=1)), site, state, "v")


def test_a_frontend_answers_for_its_prefix_in_its_own_words(wire):
    import asyncio

    async def run():
        seen = []
        for path, method in (("/broken", "GET"), ("/broken/a/b", "POST"), ("/broken/a", "GET"), ("/elsewhere", "GET")):
            line = wire(path=path, method=method)
            await broken_site()(line.scope, line.receive, line.send)
            names = {name for name, _ in line.sent[0]["headers"]}
            seen.append((line.status, b"request-id" in names, line.text[:1] == "{"))
        return seen

    assert asyncio.run(run()) == [(404, True, False), (404, True, False), (405, True, False), (404, False, True)]


@pytest.mark.contract("chat.errors.internal")
def test_an_exception_in_a_handler_is_a_500_that_tells_nothing(wire):
    import asyncio

    async def burst(_request):
        raise ValueError("secret prompt at 0x7fdeadbeef")

    def bursting_envelope(error, request_id):
        raise KeyError("also broken")

    async def run(door):
        line = wire(path="/broken/x")
        await door(line.scope, line.receive, line.send)
        return line

    line = asyncio.run(run(broken_site(handler=burst)))
    assert (line.status, line.text) == (500, "The server failed to complete this request.")
    line = asyncio.run(run(broken_site(handler=burst, envelope=bursting_envelope)))
    assert line.status == 500
    assert msgspec.json.decode(line.text)["error"]["code"] == "internal_error"
    assert not re.search("secret|0x|broken", line.text)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/completion"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br, identity"])
def test_a_compressed_body_is_refused_as_that(serve, path, encoding):
    site = serve()
    answer = site.get("POST", path, b"\x1f\x8b\x08\x00", headers={"content-encoding": encoding})
    told = msgspec.json.decode(answer.content)["error"]
    assert answer.status_code == 400 and f'"{encoding}"' in told["message"]
    assert "content_encoding_not_supported" in (told.get("code"), told.get("details", {}).get("error_code"))
    body = {**CHAT, "model": "fake", "prompt": "hi"}
    assert site.get("POST", path, body, headers={"content-encoding": "identity"}).status_code == 200
