"""What a client gets back: whole messages, streams that add up to them, refusals."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_anthropic import ninfer_protocol_frontends
from ninfer_anthropic.errors import envelope
from ninfer_core.api import (
    ApiError,
    ContextLengthExceeded,
    GeneratedCall,
    HttpResponse,
    NotFound,
    OptionValues,
    Overloaded,
    QueueTimeout,
    Unavailable,
)
from ninfer_core.testing import FakeContext, FakeEngine
from ninfer_core.testing.frontend import REQUEST_ID, answer, delivered

BODY: dict[str, Any] = {"model": "claude-x", "messages": [{"role": "user", "content": "hi"}]}
OMITTED = {"thinking": {"type": "adaptive", "display": "omitted"}}
FIND = GeneratedCall(name="find", arguments='{"b": 1.0, "a": "é"}')
NOW = GeneratedCall(name="now", arguments="{}")


def answered(
    engine: FakeEngine, path: str = "/v1/messages", options: dict[str, Any] | None = None, **fields: Any
) -> HttpResponse:
    context = FakeContext(engine, OptionValues(options or {}, frozenset()))
    opened = ninfer_protocol_frontends()[0].open(context)
    route = next(route for route in opened.routes if route.path == path)

    async def ask() -> HttpResponse:
        response = await answer(opened, route, {}, msgspec.json.encode({**BODY, **fields}))
        headers = response.headers
        whole = await delivered(opened, response)
        whole.headers = headers
        return whole

    return asyncio.run(ask())


def whole(engine: FakeEngine, **fields: Any) -> dict[str, Any]:
    return msgspec.json.decode(answered(engine, **fields).body)


def events(engine: FakeEngine, **fields: Any) -> list[dict[str, Any]]:
    """Every event of a stream; its name is its type."""
    out = []
    for event in answered(engine, stream=True, **fields).body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        out.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {out[-1]['type']}"
    return out


def added_up(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream, with the life of every block checked on the way."""
    first, *middle, delta, last = stream
    assert first["type"] == "message_start"
    assert first["message"]["content"] == []
    assert last == {"type": "message_stop"}
    blocks: list[dict[str, Any]] = []
    opened = False
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not opened
                opened, block = True, dict(event["content_block"])
                assert event["index"] == len(blocks)
                assert not any(block.get(key) for key in ("text", "thinking", "signature", "input"))
                blocks.append({**block, "json": ""})
            case "content_block_delta":
                assert opened
                assert event["index"] == len(blocks) - 1
                add(blocks[-1], event["delta"])
            case "content_block_stop":
                assert opened
                assert event["index"] == len(blocks) - 1
                opened = False
            case other:
                raise AssertionError(other)
    assert not opened
    for block in blocks:
        spelled = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = msgspec.json.decode(spelled)
    assert delta["type"] == "message_delta"
    split = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [first["message"]["usage"][key] for key in split] == [delta["usage"][key] for key in split]
    return {**first["message"], "content": blocks, **delta["delta"], "usage": delta["usage"]}


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kinds = {
        "text_delta": "text",
        "thinking_delta": "thinking",
        "signature_delta": "signature",
        "input_json_delta": "json",
    }
    owners = {"text": "text", "thinking": "thinking", "signature": "thinking", "json": "tool_use"}
    key = kinds[delta.pop("type")]
    (text,) = delta.values()
    assert text
    assert block["type"] == owners[key]
    assert not (key == "thinking" and block["signature"]), "the signature comes last"
    block[key] += text


@pytest.mark.contract("messages.model", "messages.usage.split")
def test_a_whole_message():
    engine = FakeEngine(pieces=[("reasoning", "hm"), "O", "K", FIND, NOW], prompt_tokens=9, cached_tokens=4)
    assert answered(engine).body.decode() == (
        '{"id":"msg_req-1","type":"message","role":"assistant","model":"claude-x","content":['
        '{"type":"thinking","thinking":"hm","signature":"ninfer-shown.v1:YVz3B7GeP4AY59kK/905nDdGbE+byyxt"},'
        '{"type":"text","text":"OK"},'
        '{"type":"tool_use","id":"toolu_req-1_0","name":"find","input":{"b": 1.0, "a": "é"}},'
        '{"type":"tool_use","id":"toolu_req-1_1","name":"now","input":{}}],'
        '"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":null,'
        '"cache_read_input_tokens":4,"output_tokens":28}}'
    )


@pytest.mark.contract(
    "messages.stream.blocks", "messages.thinking.signature", "messages.usage.start", "messages.usage.terminal"
)
def test_a_stream_to_the_byte():
    engine = FakeEngine(pieces=[("reasoning", "h"), ("reasoning", "m"), "OK", NOW])
    assert answered(engine, stream=True).body.decode() == (
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_req-1","type":"message",'
        '"role":"assistant","model":"claude-x","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
        '{"input_tokens":2,"cache_creation_input_tokens":null,"cache_read_input_tokens":3,"output_tokens":0}}}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
        '{"type":"thinking","thinking":"","signature":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        '{"type":"thinking_delta","thinking":"h"}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        '{"type":"thinking_delta","thinking":"m"}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        '{"type":"signature_delta","signature":"ninfer-shown.v1:YVz3B7GeP4AY59kK/905nDdGbE+byyxt"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":1,"content_block":'
        '{"type":"text","text":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,"delta":'
        '{"type":"text_delta","text":"OK"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":1}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":2,"content_block":'
        '{"type":"tool_use","id":"toolu_req-1_0","name":"now","input":{}}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,"delta":'
        '{"type":"input_json_delta","partial_json":"{}"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":2}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},'
        '"usage":{"input_tokens":2,"cache_creation_input_tokens":null,"cache_read_input_tokens":3,"output_tokens":7}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


@pytest.mark.contract("messages.display.empty", "messages.display.signature")
def test_omitted_thinking_shows_its_block_and_its_signature_alone():
    engine = FakeEngine(pieces=[("reasoning", "h"), ("reasoning", "m"), "OK"])
    assert whole(engine, **OMITTED)["content"] == [
        {"type": "thinking", "thinking": "", "signature": "ninfer-reasoning.v1:aG0="},
        {"type": "text", "text": "OK"},
    ]
    deltas = [event["delta"]["type"] for event in events(engine, **OMITTED) if "delta" in event and "index" in event]
    assert deltas == ["signature_delta", "text_delta"]


@pytest.mark.parametrize(
    ("engine", "kinds"),
    [
        pytest.param(FakeEngine(pieces=[NOW]), ["tool_use"], id="litellm-34692"),
        pytest.param(FakeEngine(pieces=[("reasoning", "hm"), NOW]), ["thinking", "tool_use"], id="no-text"),
        pytest.param(FakeEngine(pieces=[("reasoning", "hm")], finish="output_limit"), ["thinking"], id="RapidMLX-575"),
        pytest.param(FakeEngine(pieces=[]), [], id="nothing"),
    ],
)
def test_no_block_is_empty(engine, kinds):
    assert [block["type"] for block in whole(engine)["content"]] == kinds
    assert [block["type"] for block in added_up(events(engine))["content"]] == kinds


def test_a_tool_without_parameters_streams_an_empty_object_trt_llm_19227():
    deltas = [event["delta"] for event in events(FakeEngine(pieces=[NOW])) if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "input_json_delta", "partial_json": "{}"}]
    assert whole(FakeEngine(pieces=[NOW]))["content"][0]["input"] == {}


@pytest.mark.contract("messages.stop.sequence", "messages.stop.context", "limit.endings")
@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (FakeEngine(), ("end_turn", None)),
        (FakeEngine(finish="stop_string", stop_string="END"), ("stop_sequence", "END")),
        (FakeEngine(finish="output_limit"), ("max_tokens", None)),
        (FakeEngine(finish="context_capacity"), ("model_context_window_exceeded", None)),
        (FakeEngine(pieces=[NOW]), ("tool_use", None)),
        (FakeEngine(pieces=[NOW], finish="output_limit"), ("max_tokens", None)),
        (FakeEngine(pieces=[NOW], finish="stop_string", stop_string="x"), ("stop_sequence", "x")),
    ],
)
def test_why_it_ended(engine, expected):
    for message in (whole(engine), added_up(events(engine))):
        assert (message["stop_reason"], message["stop_sequence"]) == expected


pieces = st.lists(
    st.tuples(st.sampled_from(["reasoning", "content"]), st.text(min_size=1, max_size=4)),
    max_size=8,
).map(lambda said: sorted(said, key=lambda piece: piece[0] == "content"))
calls = st.lists(st.sampled_from([FIND, NOW]), max_size=3)


@pytest.mark.contract("messages.usage.terminal", "messages.stream.blocks")
@given(
    said=pieces,
    called=calls,
    cached=st.integers(0, 9),
    finish=st.sampled_from(["stop_token", "output_limit", "context_capacity"]),
    more=st.sampled_from([{}, OMITTED]),
)
def test_a_stream_adds_up_to_the_message_however_it_is_cut(said, called, cached, finish, more):
    engine = FakeEngine(pieces=[*said, *called], prompt_tokens=9, cached_tokens=cached, finish=finish)
    assert added_up(events(engine, **more)) == whole(engine, **more)


def test_every_split_of_one_answer_adds_up():
    said = "hm\nOK🌍"
    for at, end in itertools.combinations(range(len(said) + 1), 2):
        parts = [("reasoning", said[:at]), ("content", said[at:end]), ("content", said[end:])]
        engine = FakeEngine(pieces=[part for part in parts if part[1]] + [FIND])
        assert added_up(events(engine)) == whole(engine)


def test_one_call_is_kept_of_several():
    single = {
        "tools": [{"name": "now", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    engine = FakeEngine(pieces=[NOW, FIND])
    assert [block["name"] for block in whole(engine, **single)["content"]] == ["now"]
    assert added_up(events(engine, **single))["content"] == whole(engine, **single)["content"]


def test_dropped_tools_are_named_in_a_header():
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "now", "input_schema": {}}]
    lenient = {"lenient_tools": True}
    for path, stream in (("/v1/messages", False), ("/v1/messages", True), ("/v1/messages/count_tokens", False)):
        response = answered(FakeEngine(), path, lenient, tools=tools, stream=stream)
        assert response.headers["x-ninfer-dropped-tools"] == "web_search"
        assert "x-ninfer-dropped-tools" not in answered(FakeEngine(), path, lenient, stream=stream).headers


# ------------------------------------------------------------------ refusals


def refused(error: ApiError) -> tuple[int, dict[str, Any]]:
    response = envelope(error, REQUEST_ID)
    body = msgspec.json.decode(response.body)
    assert (body.pop("type"), body.pop("request_id")) == ("error", REQUEST_ID)
    assert list(body) == ["error"]
    return response.status, body["error"]


@pytest.mark.contract("messages.errors.categories", "messages.errors.overload", "messages.errors.timeout")
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ApiError("invalid_value", "no"), 400, "invalid_request_error"),
        (ApiError("invalid_api_key", "no", status=401), 401, "authentication_error"),
        (ApiError("forbidden_host", "no", status=403), 403, "permission_error"),
        (NotFound("route_not_found", "no"), 404, "not_found_error"),
        (ApiError("method_not_allowed", "no", status=405, headers={"allow": "POST"}), 405, "invalid_request_error"),
        (ApiError("request_too_large", "no", status=413), 413, "request_too_large"),
        (ApiError("slow_down", "no", status=429), 429, "rate_limit_error"),
        (ApiError("internal_error", "no", status=500), 500, "api_error"),
        (ApiError("media_fetch_failed", "no", status=502), 502, "api_error"),
        (Unavailable("model_loading", "The model is still loading. Retry shortly."), 503, "api_error"),
        pytest.param(QueueTimeout(), 504, "timeout_error", id="vllm-18826-queue"),
        (ApiError("media_fetch_timeout", "no", status=504), 504, "timeout_error"),
        pytest.param(Overloaded(), 529, "overloaded_error", id="vllm-18826-full"),
    ],
)
def test_a_refusal_has_the_protocols_status_and_category(error, status, kind):
    code, inside = refused(error)
    assert (code, inside["type"], inside["message"]) == (status, kind, error.message)
    assert envelope(error, REQUEST_ID).headers == error.headers
    # the client can do nothing about a fault of the server
    assert ("details" in inside) == (status < 500)


def test_a_refusal_names_cause_and_place():
    error = ApiError("invalid_value", "no", param="messages[0]", fields={"limit": 3})
    assert refused(error)[1]["details"] == {"error_code": "invalid_value", "param": "messages[0]", "limit": 3}


def test_a_prompt_that_is_too_long_says_it_in_the_words_agents_know_claude_code_476():
    status, inside = refused(ContextLengthExceeded(9000, 4096))
    assert status == 400
    assert inside["message"].startswith("prompt is too long: 9000 tokens > 4096 maximum")
    assert inside["details"] == {"error_code": "context_length_exceeded", "n_prompt_tokens": 9000, "n_ctx": 4096}


def test_a_prompt_that_was_not_counted_is_too_long_all_the_same():
    inside = refused(ApiError("context_length_exceeded", "Far too much.", fields={"n_ctx": 4096}))[1]
    assert inside["message"] == "prompt is too long. Far too much."


def test_places_are_named_in_this_protocols_words():
    assert refused(ApiError("invalid_value", "no", param="stop"))[1]["details"]["param"] == "stop_sequences"


def test_a_failure_under_a_stream_is_its_last_event():
    *_, before, last = events(FakeEngine(failure=Unavailable()))
    assert before["type"] == "content_block_delta"
    message = "The server is not available."
    assert last == {"type": "error", "error": {"type": "api_error", "message": message}, "request_id": REQUEST_ID}
