"""Whole answers, byte for byte: status, the headers that matter, body or event stream.

``NINFER_WRITE_GOLDEN=1`` writes the files anew; read the diff before keeping it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.api import ApiError, ContextLengthExceeded, GeneratedCall, Timings, Unavailable
from ninfer_core.errors import Overloaded
from ninfer_core.testing import FakeEngine

GOLDEN = Path(__file__).with_name("golden")
HEADERS = (
    "content-type",
    "retry-after",
    "allow",
    "cache-control",
    "x-request-id",
    "x-ninfer-version",
    "x-ninfer-dropped-tools",
)
CHAT = "/v1/chat/completions"
RAW = "/v1/completions"
RESPONSES = "/v1/responses"
TURN = {"messages": [{"role": "user", "content": "hi"}]}
THOUGHT = {"pieces": [("reasoning", "Hm"), ("reasoning", "m."), "Pa", "ris 🌍"], "finish": "output_limit"}
DRAFTED = Timings(prompt_n=5, prompt_ms=4, predicted_n=3, predicted_ms=10, draft_n=8, draft_n_accepted=6)
CALLS = {
    "pieces": [
        ("reasoning", "Hm."),
        "Let me see.",
        GeneratedCall(name="get_weather", arguments='{"city":"Örebro","days":1.0}'),
        GeneratedCall(name="patch", arguments='{"input":"*** a\\n"}'),
    ]
}
TOOLS: dict[str, Any] = {
    **TURN,
    "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
        {"type": "custom", "custom": {"name": "patch"}},
        {"type": "web_search"},
    ],
}

ITEM: dict[str, Any] = {"model": "fake", "input": [{"role": "user", "content": "hi"}]}
ANSWER = {"pieces": [("reasoning", "Hm"), "P", "é", GeneratedCall(name="n.now", arguments="{}")]}

CASES: dict[str, tuple[dict[str, Any], str, str, Any]] = {
    "chat_aggregate": ({}, "POST", CHAT, TURN),
    "chat_aggregate_reasoning": (THOUGHT, "POST", CHAT, TURN),
    "chat_aggregate_drafted": ({"timings": DRAFTED}, "POST", CHAT, TURN),
    "chat_stream": ({}, "POST", CHAT, {**TURN, "stream": True}),
    "chat_stream_reasoning": (THOUGHT, "POST", CHAT, {**TURN, "stream": True}),
    "chat_stream_usage": ({}, "POST", CHAT, {**TURN, "stream": True, "stream_options": {"include_usage": True}}),
    "chat_aggregate_logprobs": (THOUGHT, "POST", CHAT, {**TURN, "logprobs": True, "top_logprobs": 2}),
    "chat_stream_logprobs": (
        {"pieces": [("reasoning", "Hm"), "Pa", "é"]},
        "POST",
        CHAT,
        {**TURN, "stream": True, "logprobs": True, "top_logprobs": 1},
    ),
    "chat_post_thinking_unknown": ({}, "POST", CHAT, {**TURN, "post_thinking": {"temp": 0.5}}),
    "chat_top_logprobs_alone": ({}, "POST", CHAT, {**TURN, "top_logprobs": 5}),
    "chat_stream_progress": (
        {"pieces": ["OK"]},
        "POST",
        CHAT,
        {**TURN, "stream": True, "return_progress": True, "timings_per_token": True},
    ),
    "chat_calls": ({**CALLS, "lenient_tools": True}, "POST", CHAT, TOOLS),
    "chat_calls_stream": ({**CALLS, "lenient_tools": True}, "POST", CHAT, {**TOOLS, "stream": True}),
    "chat_hosted_tool": ({}, "POST", CHAT, TOOLS),
    "chat_stream_failed": ({"failure": Unavailable()}, "POST", CHAT, {**TURN, "stream": True}),
    "chat_overloaded": ({"refusal": Overloaded()}, "POST", CHAT, TURN),
    "chat_too_long": ({"refusal": ContextLengthExceeded(9000, 4096)}, "POST", CHAT, {**TURN, "stream": True}),
    "chat_bad_role": ({}, "POST", CHAT, {"messages": [{"role": "robot", "content": "hi"}]}),
    "chat_unknown_model": ({}, "POST", CHAT, {**TURN, "model": "gpt"}),
    "completions_aggregate": ({}, "POST", RAW, {"prompt": "hi"}),
    "completions_stream": (
        {"finish": "output_limit"},
        "POST",
        RAW,
        {"prompt": [104, "i "], "echo": True, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "completions_suffix": ({}, "POST", RAW, {"prompt": "hi", "suffix": "}"}),
    "responses_aggregate": (THOUGHT, "POST", RESPONSES, ITEM),
    "responses_stream": ({}, "POST", RESPONSES, {**ITEM, "stream": True}),
    "responses_stream_everything": (
        ANSWER,
        "POST",
        RESPONSES,
        {
            **ITEM,
            "stream": True,
            "store": False,
            "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "now"}]}],
        },
    ),
    "responses_stream_failed": ({"failure": Unavailable()}, "POST", RESPONSES, {**ITEM, "stream": True}),
    "responses_hosted_tool": ({}, "POST", RESPONSES, {**ITEM, "tools": [{"type": "web_search"}]}),
    "responses_input_tokens": ({}, "POST", f"{RESPONSES}/input_tokens", ITEM),
    "responses_not_found": ({}, "GET", f"{RESPONSES}/resp_none", None),
    "models": ({}, "GET", "/v1/models", None),
    "model": ({}, "GET", "/v1/models/fake", None),
    "model_unknown": ({}, "GET", "/v1/models/org/other", None),
    "completion_aggregate": ({}, "POST", "/completion", {"prompt": "hi", "n_predict": 16, "return_tokens": True}),
    "completion_stopped": (
        {"finish": "stop_string", "stop_string": "\n", "pieces": ["a", "b"]},
        "POST",
        "/completions",
        {"prompt": [104, "i"], "stop": ["\n", "Q:"], "temperature": -1, "top_k": -1, "seed": 3},
    ),
    "completion_fields": (
        {},
        "POST",
        "/completion",
        {"prompt": "hi", "n_predict": 2, "response_fields": ["content", "generation_settings/n_predict", "none/such"]},
    ),
    "completion_stream": ({}, "POST", "/completion", {"prompt": "hi", "stream": True, "return_tokens": True}),
    "completion_stream_progress": (
        {"pieces": ["OK\n"], "finish": "output_limit"},
        "POST",
        "/completion",
        {"prompt": "hi", "stream": True, "return_progress": True, "timings_per_token": True, "n_predict": 3},
    ),
    "completion_stream_failed": ({"failure": Unavailable()}, "POST", "/completion", {"prompt": "hi", "stream": True}),
    "completion_refused": ({}, "POST", "/completion", {"prompt": "hi", "mirostat": 2}),
    "completion_prompts": ({}, "POST", "/completion", {"prompt": ["a", "b"]}),
    "tokenize": ({}, "POST", "/tokenize", {"content": "aé"}),
    "tokenize_pieces": ({}, "POST", "/tokenize", {"content": "aé", "with_pieces": True}),
    "detokenize": ({}, "POST", "/detokenize", {"tokens": [97, 195, 169]}),
    "detokenize_outside": ({}, "POST", "/detokenize", {"tokens": [97, 256]}),
    "apply_template": ({}, "POST", "/apply-template", TURN),
    "custom_refusal": (
        {"refusal": ApiError("invalid_prompt", "No.", param="messages[0]", fields={"n_ctx": 1})},
        "POST",
        CHAT,
        TURN,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_what_the_file_holds(serve, fixed_ids, name):
    said, method, path, body = CASES[name]
    options = {"lenient_tools": said.get("lenient_tools", False)}
    engine = FakeEngine(**{key: value for key, value in said.items() if key not in options})
    response = serve(engine, **options).get(method, path, body)
    head = [f"{name}: {response.headers[name]}" for name in HEADERS if name in response.headers]
    # the time of day is the only thing that may differ
    text = re.sub(r'"(created|created_at|completed_at)":\d{10}', r'"\1":0', response.content.decode())
    answer = "\n".join([str(response.status_code), *head, "", text])
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("NINFER_WRITE_GOLDEN"):
        file.write_text(answer, encoding="utf-8", newline="")
    assert answer.encode() == file.read_bytes()


def test_no_golden_file_is_left_over():
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)
