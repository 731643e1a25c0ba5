"""Results on the wire: the whole message and the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer_core.api import Called, Delta, Done, GeneratedCall, Generation, Result, Started
from ninfer_core.api.http import KEEP_ALIVE, sse_event

from .signatures import restorable, shown

HEARTBEAT = KEEP_ALIVE + sse_event({"type": "ping"}, event="ping")
"""Clients do not count comments as a sign of life; they skip pings, but see them."""

STOP_REASONS = {
    "stop_token": "end_turn",
    "stop_string": "stop_sequence",
    "output_limit": "max_tokens",
    "context_capacity": "model_context_window_exceeded",
    "cancelled": "end_turn",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """What one response carries, and what the client asked to see."""

    exchange: str  # hexadecimal digits that no other response has
    model: str  # the client's own name for it
    omits_thinking: bool = False

    def head(self) -> dict[str, Any]:
        """The members every message begins with."""
        return {"id": f"msg_{self.exchange}", "type": "message", "role": "assistant", "model": self.model}

    def thinking(self, reasoning: str) -> dict[str, Any]:
        return {
            "type": "thinking",
            "thinking": "" if self.omits_thinking else reasoning,
            "signature": self.signature(reasoning),
        }

    def signature(self, reasoning: str) -> str:
        return restorable(reasoning) if self.omits_thinking else shown(reasoning)

    def tool_use(self, index: int, call: GeneratedCall, arguments: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{self.exchange}_{index}", "name": call.name, "input": arguments}


def message(result: Result, rendering: Rendering) -> dict[str, Any]:
    """The aggregate: thinking, text and calls in this order, none of them empty."""
    content: list[dict[str, Any]] = []
    if result.reasoning:
        content.append(rendering.thinking(result.reasoning))
    if result.content:
        content.append({"type": "text", "text": result.content})
    for index, call in enumerate(result.calls):
        # as the model wrote it: an unmodified replay is then the same prompt
        content.append(rendering.tool_use(index, call, msgspec.Raw(call.arguments.encode())))
    return {**rendering.head(), "content": content, **ending(result), "usage": result_usage(result)}


def beginning(event: Started, rendering: Rendering) -> dict[str, Any]:
    """A message of which nothing was said yet; what was reused of its prompt is known."""
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return {**rendering.head(), **empty, "usage": usage(event.prompt_tokens, event.reused_tokens, 0)}


def ending(result: Result) -> dict[str, Any]:
    """Why it ended. An answer that ends by itself after a call waits for the call's result."""
    reason = "tool_use" if result.calls and result.finish == "stop_token" else STOP_REASONS[result.finish]
    return {"stop_reason": reason, "stop_sequence": result.stop_string if result.finish == "stop_string" else None}


def result_usage(result: Result) -> dict[str, Any]:
    """All counts of a finished message; output includes the stop token."""
    return usage(result.prompt_tokens, result.cached_tokens, result.completion_tokens)


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """``input_tokens`` are those that were computed. What a cache will keep is not known."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


async def events(generation: Generation, rendering: Rendering) -> AsyncIterator[bytes]:
    """The event stream, a chunk for each event of the engine that shows."""
    blocks = OpenBlock(rendering)
    async with generation:
        async for event in generation:
            match event:
                case Started():
                    yield named("message_start", message=beginning(event, rendering))
                case Delta():
                    chunk = blocks.text(event.channel == "reasoning", event.text)
                    if chunk:
                        yield chunk
                case Called():
                    yield blocks.call(event.index, event.call)
                case Done(result=result):
                    end = named("message_delta", delta=ending(result), usage=result_usage(result))
                    yield b"".join((blocks.close(), end, named("message_stop")))


class OpenBlock:
    """The block under way: opened by its first text, closed by the next one or the end."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._index = -1  # of the newest block
        self._kind: str | None = None  # None: none is open
        self._thought: list[str] = []  # of a thinking block that is open

    def text(self, reasoning: bool, text: str) -> bytes:
        """A piece of reasoning or answer; nothing where there is nothing to see."""
        if not text:
            return b""
        if not reasoning:
            opened = self._open("text", {"type": "text", "text": ""})
            return opened + self._delta(type="text_delta", text=text)
        opened = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(text)
        if self._rendering.omits_thinking:
            return opened
        return opened + self._delta(type="thinking_delta", thinking=text)

    def call(self, index: int, call: GeneratedCall) -> bytes:
        """A whole call."""
        return b"".join(
            (
                self.close(),
                self._open("tool_use", self._rendering.tool_use(index, call, {})),
                self._delta(type="input_json_delta", partial_json=call.arguments),
                self.close(),
            )
        )

    def close(self) -> bytes:
        """End the block that is open, if one is. A thinking block is signed first."""
        if self._kind is None:
            return b""
        signed = b""
        if self._kind == "thinking":
            signature = self._rendering.signature("".join(self._thought))
            signed = self._delta(type="signature_delta", signature=signature)
        self._kind = None
        return signed + named("content_block_stop", index=self._index)

    def _open(self, kind: str, block: dict[str, Any]) -> bytes:
        if self._kind == kind:
            return b""
        closed = self.close()
        self._index += 1
        self._kind, self._thought = kind, []
        return closed + named("content_block_start", index=self._index, content_block=block)

    def _delta(self, **delta: str) -> bytes:
        return named("content_block_delta", index=self._index, delta=delta)


def named(kind: str, **members: Any) -> bytes:
    """An event whose name is repeated as its type."""
    return sse_event({"type": kind, **members}, event=kind)
