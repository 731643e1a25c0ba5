"""Anthropic's own client on the application: what it parses is what was meant."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import pytest

from ninfer_core.api import ContextLengthExceeded, GeneratedCall, NotFound, Overloaded, QueueTimeout, Unavailable
from ninfer_core.errors import InternalError
from ninfer_core.testing import FakeEngine

ASK: Any = {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
TOOLS: Any = [{"name": "find", "description": "Finds.", "input_schema": {"type": "object", "properties": {"q": {}}}}]
SPOKEN: Any = [
    ("reasoning", "Hm"),
    ("reasoning", "m"),
    "O",
    "K",
    GeneratedCall(name="find", arguments='{"q":"é","n":1.5}'),
]
OMITTED: Any = {"type": "adaptive", "display": "omitted"}


def client(site: Any, key: str = "none") -> anthropic.AsyncAnthropic:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(site.door))
    return anthropic.AsyncAnthropic(api_key=key, base_url="http://127.0.0.1", http_client=http, max_retries=0)


def test_a_whole_message(serve):
    message = asyncio.run(client(serve(FakeEngine(prompt_tokens=9, cached_tokens=4))).messages.create(**ASK))
    assert (message.type, message.role, message.model, message.stop_reason) == (
        "message",
        "assistant",
        "claude",
        "end_turn",
    )
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text == "OK."
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 4, 4)
    assert usage.cache_creation_input_tokens is None
    assert message._request_id and message._request_id.startswith("req_")


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, OMITTED], ids=["shown", "omitted"])
def test_a_stream_adds_up_to_the_whole_message(serve, thinking):
    async def run():
        api = client(serve(FakeEngine(pieces=SPOKEN)))
        asked: Any = {**ASK, "tools": TOOLS, "thinking": thinking}
        whole = await api.messages.create(**asked)
        async with api.messages.stream(**asked) as stream:
            seen = [event.type async for event in stream]
            return whole, await stream.get_final_message(), seen

    whole, streamed, seen = asyncio.run(run())
    kinds = [block.type for block in whole.content]
    assert kinds == ["thinking", "text", "tool_use"]
    for message in (whole, streamed):
        thought, text, call = message.content
        assert thought.thinking == ("" if thinking is OMITTED else "Hmm")
        assert thought.signature == whole.content[0].signature
        assert (text.text, call.name, call.input) == ("OK", "find", {"q": "é", "n": 1.5})
        assert message.stop_reason == "tool_use"
    assert streamed.usage == whole.usage
    assert seen.count("content_block_stop") == 3
    assert ("thinking" in seen) is (thinking is not OMITTED)
    assert {"signature", "text", "input_json", "message_stop"} <= set(seen)


def test_what_it_sends_back_is_understood(serve):
    async def run():
        site = serve(FakeEngine(pieces=SPOKEN))
        api = client(site)
        asked: Any = {**ASK, "tools": TOOLS, "thinking": OMITTED}
        first = await api.messages.create(**asked)
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "found", "is_error": False}
        history = [*ASK["messages"], first.to_param(), {"role": "user", "content": [result]}]
        await api.messages.create(**{**asked, "messages": history})
        return site.engine.jobs[-1]

    user, assistant, tool = asyncio.run(run()).messages
    assert (user.text, assistant.reasoning, assistant.text, tool.text) == ("hi", "Hmm", "OK", "found")
    assert tool.tool_call_id == assistant.tool_calls[0].id


def test_tokens_are_counted(serve):
    async def run():
        api = client(serve())
        return await api.messages.count_tokens(
            model="claude", messages=ASK["messages"], system="Be brief.", tools=TOOLS
        )

    assert asyncio.run(run()).input_tokens > 0


@pytest.mark.parametrize(
    ("error", "kind", "category"),
    [
        (ContextLengthExceeded(9000, 4096), anthropic.BadRequestError, "invalid_request_error"),
        (NotFound("model_not_found", "no"), anthropic.NotFoundError, "not_found_error"),
        (InternalError(), anthropic.InternalServerError, "api_error"),
        (Unavailable(), anthropic.InternalServerError, "api_error"),
        (QueueTimeout(), anthropic.InternalServerError, "timeout_error"),
        (Overloaded(), anthropic.InternalServerError, "overloaded_error"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_typed(serve, error, kind, category, stream):
    async def run():
        await client(serve(FakeEngine(refusal=error))).messages.create(**ASK, stream=stream)

    with pytest.raises(kind) as caught:
        asyncio.run(run())
    refused: Any = caught.value
    assert refused.body["error"]["type"] == category
    assert error.message in refused.body["error"]["message"]
    assert refused.body["request_id"] == refused.request_id


def test_a_refusal_says_what_and_where(serve):
    async def run():
        asked: Any = {**ASK, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
        await client(serve()).messages.create(**asked)

    with pytest.raises(anthropic.BadRequestError) as caught:
        asyncio.run(run())
    body: Any = caught.value.body
    assert body["error"]["details"] == {"error_code": "tool_type_not_supported", "param": "tools[0].type"}


def test_a_wrong_key_is_an_authentication_error(serve):
    async def run(key: str):
        return await client(serve(api_key="secret"), key).messages.create(**ASK)

    with pytest.raises(anthropic.AuthenticationError):
        asyncio.run(run("wrong"))
    assert asyncio.run(run("secret")).content


def test_a_failure_inside_a_stream_is_raised(serve):
    async def run():
        stream = await client(serve(FakeEngine(failure=Unavailable()))).messages.create(**ASK, stream=True)
        return [event async for event in stream]

    with pytest.raises(anthropic.APIStatusError, match="The server is not available") as caught:
        asyncio.run(run())
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
