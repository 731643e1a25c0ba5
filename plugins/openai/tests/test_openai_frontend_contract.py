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
        }
    }
    streaming = frozenset({"/v1/chat/completions"})
