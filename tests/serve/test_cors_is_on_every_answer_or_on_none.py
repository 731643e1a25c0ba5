"""``--cors``."""

from __future__ import annotations

import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ORIGIN = {"origin": "http://app.example:3000"}
PREFLIGHT = {**ORIGIN, "access-control-request-method": "POST"}


def answers(site):
    """One of each kind: good, streamed, refused, unknown, wrong method, bare OPTIONS."""
    json = {**ORIGIN, "content-type": "application/json", "x-api-key": "k"}
    yield site.get("GET", "/v1/models", headers=json)
    yield site.get("POST", "/v1/chat/completions", {**CHAT, "stream": True}, headers=json)
    yield site.get("POST", "/v1/chat/completions", b"{", headers=json)
    yield site.get("GET", "/nope", headers=json)
    yield site.get("PUT", "/health", headers=json)
    yield site.get("OPTIONS", "/health", headers=json)
    yield site.get("GET", "/v1/models", headers=ORIGIN)
    yield site.get("GET", "/v1/models", headers={**json, "host": "evil.example"})


STATUSES = [200, 200, 400, 404, 405, 204, 401, 403]


@pytest.mark.contract("access.cors")
@pytest.mark.parametrize("thread", ["vllm-pr-4862"])
def test_every_answer_may_be_read_by_any_page(serve, thread):
    got = list(answers(serve(cors=True, api_key="k")))
    assert [answer.status_code for answer in got] == STATUSES
    for answer in got:
        assert answer.headers.get_list("access-control-allow-origin") == ["*"]
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    loading = serve(cors=True, loading=True).get("OPTIONS", "/v1/models", headers=PREFLIGHT)
    assert (loading.status_code, loading.headers["access-control-allow-origin"]) == (503, "*")


@pytest.mark.contract("access.cors.off")
def test_without_the_flag_no_answer_says_anything_of_it(serve):
    site = serve(api_key="k")
    got = [*answers(site), site.get("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)]
    assert [answer.status_code for answer in got] == [*STATUSES, 204]
    assert not [name for answer in got for name in answer.headers if name.startswith("access-control")]


@pytest.mark.contract("access.open", "access.cors")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health", "/v1/v1/models", "/nope"])
@pytest.mark.parametrize("key", [pytest.param(None, id="llama.cpp-6544-open"), pytest.param("k", id="sonar-434-key")])
def test_a_preflight_is_204_on_every_route_without_a_key(serve, path, key):
    answer = serve(cors=True, api_key=key).get("OPTIONS", path, headers=PREFLIGHT)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["x-ninfer-version"] == "1.2.3+test"


def allowed(serve, asked):
    site = serve(cors=True)
    headers = [*PREFLIGHT.items(), *(("access-control-request-headers", line) for line in asked)]
    return site.get("OPTIONS", "/v1/models", headers=headers).headers["access-control-allow-headers"].split(", ")


@pytest.mark.contract("access.cors.headers")
@pytest.mark.parametrize(
    ("asked", "more"),
    [
        pytest.param(["X-Conversation-Id,content-type"], ["x-conversation-id"], id="flexllama-pr-30"),
        pytest.param(["a, b", " c"], ["a", "b", "c"], id="several"),
    ],
)
def test_requested_headers_are_allowed_on_top_of_the_fixed_ones(serve, asked, more):
    fixed = allowed(serve, [])
    assert {"authorization", "x-api-key", "content-type"} <= set(fixed)
    assert allowed(serve, asked) == [*fixed, *more]


def test_what_is_no_header_name_is_not_echoed(serve):
    assert allowed(serve, ["x y, <script>, ,:a, ok"]) == [*allowed(serve, []), "ok"]
