"""OpenAI's own client on the application: what it parses is what was meant."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from ninfer_core.api import Unavailable
from ninfer_core.testing import FakeEngine

ASK: Any = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def client(site) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(site.door))
    return openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=http, max_retries=0)


def test_an_aggregate_answer(serve):
    answer = asyncio.run(client(serve()).chat.completions.create(**ASK))
    assert answer.choices[0].message.content == "OK."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 9
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer._request_id and answer._request_id.startswith("req_")


def test_a_stream_with_usage(serve):
    async def run():
        engine = FakeEngine(pieces=[("reasoning", "Hm"), "O", "K"])
        stream = await client(serve(engine)).chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in stream]

    chunks = asyncio.run(run())
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "OK"
    assert chunks[1].choices[0].delta.reasoning_content == "Hm"  # type: ignore[attr-defined]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5


def test_log_probabilities(serve):
    async def run():
        engine = FakeEngine(pieces=[("reasoning", "Hm"), "O", "é"])
        asked: Any = {**ASK, "logprobs": True, "top_logprobs": 2}
        whole = await client(serve(engine)).chat.completions.create(**asked)
        async with client(serve(engine)).chat.completions.stream(**asked) as stream:
            added_up = await stream.get_final_completion()
        none = await client(serve(engine)).chat.completions.create(**ASK)
        return whole.choices[0].logprobs, added_up.choices[0].logprobs, none.choices[0].logprobs

    whole, added_up, none = asyncio.run(run())
    assert none is None
    assert whole is not None and whole.content is not None and whole.refusal is None
    assert [(one.token, one.logprob, one.bytes) for one in whole.content] == [
        ("O", -0.25, [79]),
        ("\ufffd", -0.25, [0xC3]),
        ("\ufffd", -0.25, [0xA9]),
    ]
    assert [(one.token, one.logprob) for one in whole.content[0].top_logprobs] == [("O", -0.25), ("P", -1.25)]
    assert added_up is not None and added_up.content == whole.content


def test_a_failure_inside_a_stream_is_raised(serve):
    async def run():
        stream = await client(serve(FakeEngine(failure=Unavailable()))).chat.completions.create(**ASK, stream=True)
        return [chunk async for chunk in stream]

    with pytest.raises(openai.APIError, match="The server is not available"):
        asyncio.run(run())


def test_models_and_refusals(serve):
    async def run():
        api = client(serve())
        listed = [model.id async for model in api.models.list()]
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.chat.completions.create(**{**ASK, "model": "gpt"})
        with pytest.raises(openai.BadRequestError) as wrong:
            await api.chat.completions.create(**ASK, temperature=3)
        return listed, (await api.models.retrieve("fake")).id, unknown.value, wrong.value

    listed, one, unknown, wrong = asyncio.run(run())
    assert (listed, one) == (["fake"], "fake")
    assert (unknown.code, unknown.param) == ("model_not_found", "model")
    assert (wrong.code, wrong.param) == ("invalid_value", "temperature")
