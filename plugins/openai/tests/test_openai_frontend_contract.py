"""The core's contract for frontends."""

from __future__ import annotations

from typing import ClassVar

from ninfer_core.testing import ProtocolFrontendContract
from ninfer_openai import ninfer_protocol_frontends


class TestOpenAI(ProtocolFrontendContract):
    frontend = ninfer_protocol_frontends()[0]
    bodies: ClassVar = {
        "/v1/chat/completions": {
            "model": "fake",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "max_tokens": 8,
            "temperature": 0.5,
            "stop": ["END"],
            "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}],
            "tool_choice": {"type": "custom", "custom": {"name": "c"}},
            "stream_options": {"include_usage": True},
        },
        "/v1/completions": {"model": "fake", "prompt": [104, "i"], "echo": True, "max_tokens": 4, "stop": "x"},
        "/v1/responses": {
            "model": "fake",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "instructions": "Be brief.",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "max_output_tokens": 8,
        },
        "/v1/responses/input_tokens": {"model": "fake", "input": "hi", "reasoning": {"effort": "low"}},
    }
    streaming = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
    refusing = frozenset(
        {
            "/v1/responses/compact",
            "/v1/responses/{response_id}/cancel",
            "/v1/models/{model_id:path}/suspend",
            "/v1/models/{model_id:path}/resume",
        }
    )
    params: ClassVar = {"model_id": "fake", "response_id": "resp_none"}
