"""OpenAI's own client on a running server: what it parses is what was meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

contract = pytest.mark.contract
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
PATCH: Any = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


def user(text: str) -> Any:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}]}


def test_an_answer_and_its_reasoning(client):
    answer = client.chat.completions.create(**user("greet"))
    message: Any = answer.choices[0].message
    assert (message.content, message.reasoning_content, message.refusal) == ("Hello, world.", "Greetings", None)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens
    assert answer._request_id and answer._request_id.startswith("req_")


@contract("chat.tools.function", "chat.history.calls", "chat.json.generated")
def test_a_tool_is_called_answered_and_the_call_replayed(client):
    ask = user("the weather in Oslo?")
    first = client.chat.completions.create(**ask, tools=[WEATHER, TIME])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    messages = [*ask["messages"], message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(
        model="scripted", messages=messages, tools=[WEATHER, TIME], extra_body={"enable_thinking": False}
    )
    assert second.choices[0].message.content == "It is 12 degrees in Oslo."


@contract("chat.tools.parallel")
def test_several_calls_or_the_first(client):
    both = client.chat.completions.create(**user("both"), tools=[WEATHER, TIME])
    calls = both.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls if call.type == "function"] == ["get_weather", "get_time"]
    assert len({call.id for call in calls}) == 2
    one = client.chat.completions.create(**user("both"), tools=[WEATHER, TIME], parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls or []) == 1


@contract("chat.tools.custom")
def test_a_custom_tool_is_called_in_its_own_form(client):
    answer = client.chat.completions.create(**user("patch"), tools=[PATCH, WEATHER])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", "*** Begin")


@contract("chat.stream.order")
def test_the_streaming_helper_puts_the_calls_together(client):
    with client.chat.completions.stream(
        **user("the weather?"), tools=[WEATHER], stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").startswith("Looking it up.")
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert final.usage is not None and final.usage.total_tokens > 0


@contract("raw.answer", "raw.stream", "raw.echo")
def test_a_raw_completion(client):
    whole = client.completions.create(model="scripted", prompt="greet", echo=True, max_tokens=200)
    assert whole.choices[0].text == "greetGreetings</think>\n\nHello, world."
    stream = client.completions.create(
        model="scripted", prompt="greet", stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Greetings</think>\n\nHello, world."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage is not None and last.usage.prompt_tokens == 5


@contract("chat.errors.malformed", "raw.suffix", "models.lookup")
def test_refusals_are_typed_exceptions(client):
    for call, kind, code, param in (
        (lambda: client.chat.completions.create(**user("x"), n=2), openai.BadRequestError, "n_not_supported", "n"),
        (
            lambda: client.chat.completions.create(**user("x"), tools=[{"type": "web_search"}]),  # type: ignore[list-item]
            openai.BadRequestError,
            "tool_type_not_supported",
            "tools[0].type",
        ),
        (
            lambda: client.completions.create(model="scripted", prompt="x", suffix="y"),
            openai.BadRequestError,
            "suffix_not_supported",
            "suffix",
        ),
        (lambda: client.models.retrieve("gpt"), openai.NotFoundError, "model_not_found", "model"),
    ):
        with pytest.raises(kind) as caught:
            call()  # type: ignore[no-untyped-call]
        assert (caught.value.code, caught.value.param) == (code, param)


@contract("models.alias", "models.limit")
def test_the_model_list(client):
    (model,) = client.models.list().data
    found: Any = client.models.retrieve(model.id)
    assert (found.id, found.max_model_len) == ("scripted", found.context_length)
