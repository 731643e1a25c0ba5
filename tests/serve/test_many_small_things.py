"""Thousands of tools, turns and other small things in one body: refused before they cost anything, in the route's own
envelope, and the next request is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
TURN = {"role": "user", "content": "hi"}
TURNS = [TURN, {"role": "assistant", "content": "yo"}]


def functions(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{at}", "description": "Does it.", "parameters": SCHEMA} for at in range(count)]


def chat(tools: int = 0, turns: int = 0) -> tuple[str, Any]:
    given = [{"type": "function", "function": one} for one in functions(tools)]
    return "/v1/chat/completions", {"messages": [*TURNS * turns, TURN], "tools": given}


def responses(tools: int = 0, turns: int = 0) -> tuple[str, Any]:
    given = [{"type": "function", **one} for one in functions(tools)]
    return "/v1/responses", {"model": "scripted", "input": [*TURNS * turns, TURN], "tools": given}


def messages(tools: int = 0, turns: int = 0) -> tuple[str, Any]:
    given = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions(tools)]
    return "/v1/messages", {"model": "m", "messages": [*TURNS * turns, TURN], "tools": given}


def count_tokens(tools: int = 0, turns: int = 0) -> tuple[str, Any]:
    return "/v1/messages/count_tokens", messages(tools, turns)[1]


ROUTES = pytest.mark.parametrize("route", [chat, responses, messages, count_tokens])


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    with scripted({"default": {"text": "OK."}}, "--no-thinking", "--max-context", "1024") as opened:
        yield opened


def refused(server: Any, path: str, body: Any) -> str:
    answer = server.post(path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path.startswith("/v1/messages"):
        assert answer.json()["request_id"] == answer.headers["request-id"]
        return str(error["details"]["error_code"])
    return str(error["code"])


@ROUTES
@pytest.mark.parametrize(("many", "code"), [(10_000, "request_too_complex"), (2000, "context_length_exceeded")])
def test_tools(server, route, many, code, monkeypatch):
    monkeypatch.setattr(server.engine._prompts, "_render", None)
    assert refused(server, *route(tools=many)) == code


@ROUTES
@pytest.mark.parametrize(("many", "code"), [(30_000, "request_too_complex"), (1000, "context_length_exceeded")])
def test_turns(server, route, many, code, monkeypatch):
    monkeypatch.setattr(server.engine._prompts, "_render", None)
    assert refused(server, *route(turns=many)) == code


@ROUTES
def test_as_many_as_fit_are_answered(server, route):
    assert server.post(*route(tools=2, turns=3)).status_code == 200


def test_others_that_have_a_bound_of_their_own(server):
    path, body = chat()
    assert refused(server, path, {**body, "stop": ["x"] * 10_000}) == "invalid_value"
    assert refused(server, path, {**body, "logit_bias": {**{str(at): 0 for at in range(5000)}, "z": 1}}) == (
        "logit_bias_not_supported"
    )
    path, body = messages()
    assert refused(server, path, {**body, "stop_sequences": ["x"] * 10_000}) == "invalid_value"
    assert refused(server, "/completion", {"prompt": [5] * 100_000}) == "context_length_exceeded"
    assert refused(server, "/completion", {"prompt": [[]] * 60_000}) == "request_too_complex"
    assert refused(server, "/v1/rerank", {"query": "q", "documents": ["d"] * 1001}) == "invalid_value"
