"""Whatever the body: a status the contract names, the route's envelope, no leak of ours, and the next is served."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT_FIELDS = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "stop",
    "ignore_eos",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "post_thinking",
    "reasoning_effort",
    "enable_thinking",
    "preserve_thinking",
    "thinking_budget",
    "chat_template_kwargs",
    "graft",
    "timings_per_token",
    "return_progress",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "modalities",
    "audio",
    "prediction",
    "verbosity",
    "store",
    "mm_processor_kwargs",
    "web_search_options",
    "moderation",
    "grammar",
    "json_schema",
    "metadata",
    "user",
]
RAW_FIELDS = [
    "prompt",
    "model",
    "n_predict",
    "max_tokens",
    "stop",
    "ignore_eos",
    "stream",
    "timings_per_token",
    "return_progress",
    "return_tokens",
    "response_fields",
    "cache_prompt",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "repeat_penalty",
    "typical_p",
    "tfs_z",
    "dynatemp_range",
    "mirostat",
    "xtc_probability",
    "dry_multiplier",
    "top_n_sigma",
    "n_probs",
    "n_indent",
    "t_max_predict_ms",
    "grammar",
    "lora",
    "logit_bias",
    "response_format",
    "json_schema",
    "samplers",
    "id_slot",
]
ROUTES = {
    "/v1/chat/completions": (CHAT_FIELDS, {"messages": [{"role": "user", "content": "hi"}]}),
    "/apply-template": (CHAT_FIELDS, {"messages": [{"role": "user", "content": "hi"}]}),
    "/completion": (RAW_FIELDS, {"prompt": "hi"}),
    "/v1/completions": ([*RAW_FIELDS, "echo", "suffix", "n", "best_of", "logprobs"], {"prompt": "hi"}),
    "/tokenize": (["content", "parse_special", "add_special", "with_pieces", "model"], {"content": "hi"}),
    "/detokenize": (["tokens", "model"], {"tokens": [1]}),
}
LEAKS = re.compile(rb"0x[0-9a-f]{6,}|Traceback|msgspec|\.py\b|site-packages|object at")

texts = st.text(max_size=8) | st.sampled_from(
    ["user", "assistant", "tool", "text", "none", "auto", "", "json_object", "fake"]
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, -1, 2, 0.5, 20])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
message_fields = st.sampled_from(
    ["role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning", "refusal", "type", "text"]
)
messages = st.lists(st.dictionaries(message_fields, values, max_size=5), max_size=3)


def check(site, path: str, body: bytes) -> None:
    response = asyncio.run(site.ask("POST", path, body))
    assert response.status_code in (200, 400, 404), (path, body, response.text)
    assert not LEAKS.search(response.content), (path, body, response.text)
    assert response.headers["x-request-id"]
    if response.status_code != 200:
        error = msgspec.json.decode(response.content)["error"]
        assert {"message", "type", "code"} <= set(error) <= {"message", "type", "code", "param"}
        assert error["code"] and error["message"].endswith((".", '"'))
    assert site.engine.running == 0


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_json_is_answered(serve, path, data):
    fields, good = ROUTES[path]
    changed = data.draw(st.dictionaries(st.sampled_from(fields), values, max_size=3))
    if "messages" in good and data.draw(st.booleans()):
        changed["messages"] = data.draw(messages)
    site = serve()
    check(site, path, msgspec.json.encode({**good, **changed}))
    assert asyncio.run(site.ask("POST", path, good)).status_code == 200


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=40) | st.text(alphabet='{}[]",:0aeé\\u\x00 ', max_size=30).map(str.encode))
def test_any_bytes_are_answered(serve, path, body):
    check(serve(), path, body)
