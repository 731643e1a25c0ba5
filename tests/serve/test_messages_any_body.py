"""Whatever body comes to Messages: a status the contract names, its envelope, no leak, and the next is served."""

from __future__ import annotations

import asyncio
import base64
import re

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

ROUTES = ("/v1/messages", "/v1/messages/count_tokens")
GOOD = {"model": "claude", "messages": [{"role": "user", "content": "hi"}]}
FIELDS = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "thinking",
    "output_config",
    "output_format",
    "tools",
    "tool_choice",
    "metadata",
    "cache_control",
    "container",
    "mcp_servers",
    "context_management",
    "graft",
    "preserve_thinking",
    "chat_template_kwargs",
    "post_thinking",
    "service_tier",
    "nobody_knows_this",
]
LEAKS = re.compile(r"0x[0-9a-f]{6,}|Traceback|msgspec|\.py\b|site-packages|object at|<_io")

WORDS = [
    "user",
    "assistant",
    "system",
    "text",
    "tool",
    "auto",
    "none",
    "any",
    "enabled",
    "disabled",
    "adaptive",
    "",
    "1",
]
texts = st.text(max_size=8) | st.sampled_from(WORDS)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, -1, 1024, 0.5])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
# members that are nearly right, so that what lies behind the types is reached too
signatures = st.sampled_from(
    ["", "foreign", "ninfer-reasoning.v1:aG0=", "ninfer-reasoning.v1:aG0", "ninfer-reasoning.v1:"]
)
kinds = st.sampled_from(
    ["text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "server_tool_use", "x"]
)
blocks = st.fixed_dictionaries(
    {"type": kinds},
    optional={
        "text": texts | values,
        "thinking": texts,
        "signature": signatures | values,
        "id": st.sampled_from(["1", "2", ""]),
        "name": texts,
        "input": st.just({}) | values,
        "tool_use_id": st.sampled_from(["1", "2", ""]),
        "content": texts | values,
        "is_error": st.booleans(),
        "cache_control": st.just({"type": "ephemeral"}) | values,
    },
)
contents = texts | st.lists(blocks, max_size=3) | values
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]) | texts, "content": contents}),
    max_size=4,
)
thinking = st.fixed_dictionaries(
    {"type": st.sampled_from(["enabled", "disabled", "adaptive"]) | texts},
    optional={"budget_tokens": st.sampled_from([1024, 1023, 5000]) | values, "display": st.just("omitted") | values},
)
tools = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "a b"]) | values, "input_schema": st.just({"type": "object"}) | values},
        optional={"type": texts | values, "strict": st.booleans(), "input_examples": st.just([{}]) | values},
    ),
    max_size=2,
)
choices = st.fixed_dictionaries(
    {"type": st.sampled_from(["auto", "none", "any", "tool"]) | texts},
    optional={"name": st.sampled_from(["a", "b"]) | values, "disable_parallel_tool_use": st.booleans()},
)
NEARLY = {"messages": messages, "thinking": thinking, "tools": tools, "tool_choice": choices, "system": contents}
COMMON = {
    "deadline": None,
    "phases": set(Phase) - {Phase.explain},
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    names = draw(st.sets(st.sampled_from(FIELDS), max_size=4))
    changed = {name: draw(NEARLY.get(name, values) if draw(st.booleans()) else values) for name in sorted(names)}
    return msgspec.json.encode({**GOOD, **changed})


def check(site, wire, path: str, body: bytes) -> int:
    """One exchange and a good one after it; the status of the first."""

    async def exchange():
        lines = [wire(path=path, body=body), wire(path=path, body=msgspec.json.encode(GOOD))]
        for line in lines:
            await site.door(line.scope, line.receive, line.send)
        return lines

    line, after = asyncio.run(exchange())
    assert line.status in (200, 400), line.text
    assert not LEAKS.search(line.text), line.text
    if line.status == 400:
        answer = msgspec.json.decode(line.text)
        assert sorted(answer) == ["error", "request_id", "type"]
        assert answer["type"] == "error"
        assert answer["request_id"] == dict(line.sent[0]["headers"])[b"request-id"].decode()
        error = answer["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].endswith((".", '"'))
        assert error["details"]["error_code"]
    assert site.engine.running == 0
    assert after.status == 200
    return line.status


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=250, **COMMON)
@given(body=bodies())
def test_any_json_is_answered(serve, wire, path, body):
    check(serve(), wire, path, body)


@pytest.mark.slow
@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=10_000, **COMMON)
@given(body=bodies())
def test_any_json_is_answered_in_the_long_run(serve, wire, path, body):
    check(serve(), wire, path, body)


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=40, **COMMON)
@given(body=st.binary(max_size=40) | st.text(alphabet='{}[]",:0aeé\\u\x00 ', max_size=30).map(str.encode))
def test_any_bytes_are_answered(serve, wire, path, body):
    check(serve(), wire, path, body)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"model":"m","model":"n","messages":[{"role":"user","content":"hi"}]}', id="twice"),
        pytest.param(b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', id="half-a-pair"),
        pytest.param(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"top_p":1e999}', id="1e999"),
        pytest.param(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x":NaN}', id="nan"),
        pytest.param(
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x":' + b"[" * 9999 + b"]" * 9999 + b"}",
            id="deep",
        ),
        pytest.param(
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"name":"a","input_schema":{"x":"\\ud83d"}}]}',
            id="half-a-pair-in-a-schema",
        ),
        pytest.param(
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"name":"a","input_schema":{"a":1,"a":2}}]}',
            id="twice-in-a-schema",
        ),
    ],
)
def test_json_that_is_none_is_refused(serve, wire, path, body):
    assert check(serve(), wire, path, body) == 400


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_image_that_is_none_leaks_nothing_cve_2026_54236(serve, wire, path, stream):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"not an image").decode()}
    content = [{"type": "image", "source": source}]
    body = {**GOOD, "messages": [{"role": "user", "content": content}], "stream": stream}
    check(serve(), wire, path, msgspec.json.encode(body))
