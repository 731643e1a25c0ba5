"""The core's contract for frontends."""

from __future__ import annotations

from typing import ClassVar

from ninfer_anthropic import ninfer_protocol_frontends
from ninfer_core.testing import ProtocolFrontendContract

PROMPT = {
    "model": "claude",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "now", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
}


class TestAnthropic(ProtocolFrontendContract):
    frontend = ninfer_protocol_frontends()[0]
    bodies: ClassVar = {
        "/v1/messages": {**PROMPT, "max_tokens": 8, "temperature": 0.5, "stop_sequences": ["END"]},
        "/v1/messages/count_tokens": PROMPT,
    }
    streaming = frozenset({"/v1/messages"})
    statuses: ClassVar = {"server_overloaded": 529, "request_queue_timeout": 504}
    model_is_a_label = True
