"""OpenAI's own client on Responses: what it parses, accumulates and raises is what was meant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest

from ninfer_core.api import GeneratedCall, OptionValues, Overloaded, Unavailable
from ninfer_core.serve.run import compose as compose_door
from ninfer_core.serve.state import ServerState
from ninfer_core.testing import FakeEngine, compose

ASK: Any = {"model": "fake", "input": "hi"}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
OPTIONS = {
    "host": "127.0.0.1",
    "api_key": None,
    "cors": False,
    "allowed_host": (),
    "frontends": ["openai"],
    "max_request_mib": 1,
}

Work = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


@pytest.fixture(scope="module")
def plugins() -> Any:
    return compose(["openai"])


@pytest.fixture
def spoken(plugins: Any) -> Callable[..., Any]:
    """``spoken(work, engine)``: what ``work`` makes of a client on one server."""

    def run(work: Work, engine: FakeEngine | None = None) -> Any:
        state = ServerState()
        state.engine, state.phase = engine or FakeEngine(), "ready"  # type: ignore[assignment]
        door = compose_door(OptionValues(OPTIONS, frozenset()), plugins, state, "1.2.3")

        async def go() -> Any:
            http = httpx.AsyncClient(transport=httpx.ASGITransport(door))
            async with openai.AsyncOpenAI(
                api_key="none", base_url="http://127.0.0.1/v1", http_client=http, max_retries=0
            ) as client:
                return await work(client)

        return asyncio.run(go())

    return run


def test_a_response_and_its_text(spoken):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "O", "K"])
    made = spoken(lambda api: api.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"}), engine)
    assert (made.output_text, made.status, made.object) == ("OK", "completed", "response")
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.output[0].content[0].text == "Hm"
    assert (made.usage.input_tokens, made.usage.total_tokens) == (5, 10)
    assert made.usage.output_tokens_details.reasoning_tokens == 2
    assert made._request_id.startswith("req_")
    assert made.metadata == {"a": "b"}


def test_a_stream_is_accumulated_to_the_same_response(spoken):
    async def run(api: openai.AsyncOpenAI) -> Any:
        async with api.responses.stream(**ASK, tools=[TOOL], reasoning={"summary": "auto"}) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_response()

    call = GeneratedCall(name="get_weather", arguments='{"city": "Paris"}')
    kinds, final = spoken(run, FakeEngine(pieces=[("reasoning", "Hm"), "O", "K", call]))
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == "OK"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].arguments == '{"city": "Paris"}'


def test_plain_events_of_a_stream(spoken):
    async def run(api: openai.AsyncOpenAI) -> Any:
        return [event async for event in await api.responses.create(**ASK, stream=True)]

    events = spoken(run)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["OK", "."]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "OK."


def test_a_loop_of_tools_over_a_previous_response(spoken):
    engine = FakeEngine(pieces=[GeneratedCall(name="get_weather", arguments='{"city": "Paris"}')])

    async def run(api: openai.AsyncOpenAI) -> Any:
        first = await api.responses.create(**ASK, tools=[TOOL], tool_choice="auto")
        (call,) = first.output
        engine.pieces = [("content", "Sunny.")]
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await api.responses.create(model="fake", input=[output], tools=[TOOL], previous_response_id=first.id)
        # the same without the server's memory
        history: list[Any] = [{"role": "user", "content": "hi"}, *first.output, output]
        third = await api.responses.create(model="fake", input=history, tools=[TOOL], store=False)
        return call, second, third

    call, second, third = spoken(run, engine)
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "Paris"}')
    assert second.output_text == third.output_text == "Sunny."
    chained, replayed = engine.jobs[-2:]
    assert [(m.role, m.text, m.tool_calls) for m in chained.messages] == [
        (m.role, m.text, m.tool_calls) for m in replayed.messages
    ]


def test_stored_responses_are_retrieved_listed_and_deleted(spoken):
    async def run(api: openai.AsyncOpenAI) -> Any:
        made = await api.responses.create(model="fake", input=[{"role": "user", "content": str(at)} for at in range(5)])
        found = await api.responses.retrieve(made.id)
        listed = [item async for item in api.responses.input_items.list(made.id, limit=2, order="asc")]
        counted = await api.responses.input_tokens.count(model="fake", input="hi")
        await api.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await api.responses.retrieve(made.id)
        return made, found, listed, counted, gone.value

    made, found, listed, counted, gone = spoken(run)
    assert found == made
    assert [item.content[0].text for item in listed] == ["0", "1", "2", "3", "4"]
    assert counted.object == "response.input_tokens" and counted.input_tokens > 0
    assert gone.code == "response_not_found"


def test_errors_are_typed(spoken):
    async def run(api: openai.AsyncOpenAI) -> Any:
        with pytest.raises(openai.BadRequestError) as wrong:
            await api.responses.create(**ASK, temperature=3)
        with pytest.raises(openai.BadRequestError) as hosted:
            await api.responses.create(**ASK, tools=[{"type": "web_search"}])
        with pytest.raises(openai.NotFoundError) as model:
            await api.responses.create(model="gpt-5", input="hi")
        with pytest.raises(openai.NotFoundError) as parent:
            await api.responses.create(**ASK, previous_response_id="resp_none")
        with pytest.raises(openai.BadRequestError) as cancel:
            await api.responses.cancel("resp_none")
        return wrong.value, hosted.value, model.value, parent.value, cancel.value

    errors = spoken(run)
    assert [(error.code, error.param) for error in errors] == [
        ("invalid_value", "temperature"),
        ("tool_type_not_supported", "tools[0].type"),
        ("model_not_found", "model"),
        ("response_not_found", "previous_response_id"),
        ("background_not_supported", "background"),
    ]
    with pytest.raises(openai.RateLimitError):
        spoken(lambda api: api.responses.create(**ASK), FakeEngine(refusal=Overloaded()))


def test_a_failure_inside_a_stream_is_its_last_event(spoken):
    async def run(api: openai.AsyncOpenAI) -> Any:
        return [event async for event in await api.responses.create(**ASK, stream=True)]

    *_, last = spoken(run, FakeEngine(failure=Unavailable()))
    assert (last.type, last.response.status, last.response.error.code) == (
        "response.failed",
        "failed",
        "service_unavailable",
    )


def test_a_conversation_with_a_running_server(base_url):
    weather: Any = {
        "type": "function",
        "name": "get_weather",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as api:
        with api.responses.stream(model="scripted", input="weather", tools=[weather]) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            first = stream.get_final_response()
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        assert first.output_text == deltas
        call: Any = first.output[2]
        assert (call.name, call.arguments) == ("get_weather", '{"city":"Oslo"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
        second = api.responses.create(
            model="scripted",
            input=[output],
            tools=[weather],
            previous_response_id=first.id,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        assert second.output_text == "It is 12 degrees in Oslo."
        assert api.responses.retrieve(second.id) == second
        with pytest.raises(openai.BadRequestError) as overlong:
            api.responses.create(model="scripted", input="x" * 100_000, stream=True)
        assert overlong.value.code == "context_length_exceeded"
