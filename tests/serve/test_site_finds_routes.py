"""Which route a path leads to."""

from __future__ import annotations

import pytest

from ninfer_core.api import Frontend, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import error_response
from ninfer_core.errors import MethodNotAllowed, NotFound, PluginConflict
from ninfer_core.serve.site import Site


async def handler(_request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def frontend(*routes: str, prefixes: tuple[str, ...] = ()) -> Frontend:
    made = []
    for route in routes:
        method, path = route.split()
        made.append(Route(method=method, path=path, handler=handler))
    return Frontend(routes=tuple(made), envelope=error_response, prefixes=prefixes)


SITE = Site(
    [
        (
            "one",
            frontend(
                "GET /v1/models",
                "GET /v1/models/{id:path}",
                "POST /v1/models/{id:path}/suspend",
                "GET /items/{item}",
                "GET /items/best",
                prefixes=("/v1",),
            ),
        ),
        ("two", frontend("POST /v1/messages", "POST /items/{other}", prefixes=("/v1/messages", "/items"))),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "route", "params"),
    [
        ("GET", "/v1/models", "/v1/models", {}),
        ("GET", "/v1/models/a", "/v1/models/{id:path}", {"id": "a"}),
        ("GET", "/v1/models/org/name.gguf", "/v1/models/{id:path}", {"id": "org/name.gguf"}),
        ("GET", "/v1/models/a\nb", "/v1/models/{id:path}", {"id": "a\nb"}),
        ("POST", "/v1/models/org/name/suspend", "/v1/models/{id:path}/suspend", {"id": "org/name"}),
        ("GET", "/items/best", "/items/best", {}),
        ("GET", "/items/a.b+c", "/items/{item}", {"item": "a.b+c"}),
    ],
)
def test_a_path_leads_to_the_most_specific_route(method, path, route, params):
    place, found = SITE.find(path)
    assert (place.route(method, path).path, found) == (route, params)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/messages", "/v1/messages"),
        ("/v1/messages/", "/v1/messages"),
        ("/v1/mesages", "/v1/messages"),
        ("/v1/embeddings", None),
        ("/" + "x" * 10_000, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_unknown_route_names_the_one_that_may_be_meant(path, meant):
    with pytest.raises(NotFound) as refused:
        SITE.find(path)
    end = f"There is {meant!r}." if meant else " here."
    assert refused.value.message.endswith(end)
    assert len(refused.value.message) < 300


def test_patterns_of_one_shape_are_one_place_whatever_the_parameter_is_called():
    place, _ = SITE.find("/items/x")
    assert place.allowed == ["GET", "POST", "HEAD", "OPTIONS"]


@pytest.mark.parametrize("path", ["/items/a/b", "/items/", "/v1/models/", "/V1/models", "v1/models", "/"])
def test_what_no_route_spells_is_not_found(path):
    with pytest.raises(NotFound):
        SITE.find(path)


def test_a_known_path_with_another_method_says_what_is_allowed():
    place, _ = SITE.find("/v1/messages")
    with pytest.raises(MethodNotAllowed, match=r"GET is not allowed on /v1/messages; allowed: POST, OPTIONS"):
        place.route("GET", "/v1/messages")


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/v1/messages", "two"),
        ("/v1/messages/count", "two"),
        ("/v1/messagesx", "one"),
        ("/v1/x", "one"),
        ("/items/best", "one"),
        ("/items/a/b", "two"),
        ("/v2", "core"),
    ],
)
def test_the_route_then_the_longest_prefix_decides_whose_envelope_answers(path, owner):
    assert SITE.desk(path).owner == owner


def test_one_route_from_two_frontends_stops_the_start_and_names_both():
    with pytest.raises(PluginConflict, match=r"route 'POST /x/\{b\}' is offered twice: by one and by two"):
        Site([("one", frontend("POST /x/{a}")), ("two", frontend("POST /x/{b}"))])
