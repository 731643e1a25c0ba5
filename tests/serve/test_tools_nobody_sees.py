"""Clients are told of tools that the chat template has no place for: the request is an ordinary chat."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from ninfer_core.testing import FakeEngine
from ninfer_core.testing.fakes import renamed

HEADER = "x-ninfer-dropped-tools"
TURN = [{"role": "user", "content": "hi"}]
NAMES = ("find", "patch")
FUNCTIONS = [{"type": "function", "name": name} for name in NAMES]
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": TURN,
        "tools": [{"type": "function", "function": {"name": "find"}}, {"type": "custom", "custom": {"name": "patch"}}],
    },
    "/v1/responses": {"model": "fake", "input": "hi", "tools": FUNCTIONS},
    "/v1/responses/input_tokens": {"model": "fake", "input": "hi", "tools": FUNCTIONS},
    "/v1/messages": {
        "model": "m",
        "messages": TURN,
        "tools": TOOLS,
    },
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
STREAMED = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
BLIND = renamed("fake", shows_tools=False)


@pytest.mark.parametrize("path", BODIES)
def test_the_answer_names_them(serve, path):
    answer = serve(FakeEngine(info=BLIND)).get("POST", path, BODIES[path])
    assert (answer.status_code, answer.headers[HEADER]) == (200, "find, patch")
    assert HEADER not in serve(FakeEngine()).get("POST", path, BODIES[path]).headers
    without = {name: value for name, value in BODIES[path].items() if name != "tools"}
    assert HEADER not in serve(FakeEngine(info=BLIND)).get("POST", path, without).headers


@pytest.mark.parametrize("path", STREAMED)
def test_so_does_a_stream(serve, path):
    answer = serve(FakeEngine(info=BLIND)).get("POST", path, {**BODIES[path], "stream": True})
    assert (answer.status_code, answer.headers[HEADER]) == (200, "find, patch")


@pytest.mark.parametrize("choice", [None, "none"])
def test_tools_that_are_not_offered_are_not_named(serve, choice):
    body = {**BODIES["/v1/chat/completions"], "tool_choice": choice}
    answer = serve(FakeEngine(info=BLIND)).get("POST", "/v1/chat/completions", body)
    assert (HEADER in answer.headers) == (choice is None)


def test_a_served_model_knows_whether_its_template_has_a_place(scripted, tmp_path):
    blind = tmp_path / "blind.jinja"
    blind.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    body = BODIES["/v1/chat/completions"]

    def asked(*flags: str) -> httpx.Response:
        with scripted({"default": {"text": "Hi."}}, "--no-thinking", *flags) as server:
            return server.post("/v1/chat/completions", body)

    assert HEADER not in asked().headers
    answer = asked("--chat-template", str(blind))
    assert answer.headers[HEADER] == "find, patch"
    assert answer.json()["choices"][0]["message"]["content"] == "Hi."


def test_asking_together_changes_nothing(serve):
    site = serve(FakeEngine(info=BLIND))

    async def all_of_them() -> list[httpx.Response]:
        return await asyncio.gather(*(site.ask("POST", path, BODIES[path]) for path in BODIES))

    assert {answer.headers[HEADER] for answer in asyncio.run(all_of_them())} == {"find, patch"}
