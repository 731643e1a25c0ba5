"""A chat's results on the wire: the aggregate completion and the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Called, Delta, Done, Generation, Progress, Result, Started, TokenLogprob

from ..answers import FINISH, Head
from ..logprobs import TokenBytes, choice_logprobs
from .calls import Calls

CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """``token_bytes`` is None when no log probabilities were asked for."""

    head: Head
    calls: Calls
    token_bytes: TokenBytes | None = None

    def choice(self, delta: dict[str, Any], finish: str | None = None, records: Sequence[TokenLogprob] = ()) -> Any:
        """The one choice of a chunk."""
        logprobs = self.logprobs(records) if records else None
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(self, records: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """A choice's ``logprobs``; null when not asked for."""
        return None if self.token_bytes is None else choice_logprobs(records, self.token_bytes)


def finish_reason(result: Result) -> str:
    """``tool_calls`` for an answer that ended by itself with calls in it."""
    reason = FINISH[result.finish]
    return "tool_calls" if result.calls and result.finish in ("stop_token", "stop_string") else reason


def completion(result: Result, rendering: Rendering) -> dict[str, Any]:
    """The aggregate ``chat.completion`` object."""
    # a turn of calls alone has no content, as OpenAI's own have none
    message: dict[str, Any] = {"role": "assistant", "content": result.content or (None if result.calls else "")}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.calls:
        message["tool_calls"] = [rendering.calls.whole(at, call) for at, call in enumerate(result.calls)]
    message["refusal"] = None
    choice = {
        "index": 0,
        "message": message,
        "logprobs": rendering.logprobs(result.logprobs),
        "finish_reason": finish_reason(result),
    }
    return rendering.head.whole("chat.completion", choice, result)


async def chunks(generation: Generation, rendering: Rendering) -> AsyncIterator[bytes]:
    """The event stream: role, progress, deltas and calls, finish, usage when asked for, ``[DONE]``.

    A record of a token goes out with the chunk of its text; records without any text follow in a chunk of their own.
    """
    head, choice = rendering.head, rendering.choice
    async with generation:
        async for event in generation:
            match event:
                case Started():
                    yield head.chunk(CHUNK, choice({"role": "assistant", "content": ""}))
                case Progress():
                    yield head.chunk(CHUNK, choice({}), prompt_progress=_progress(event), **head.live(event.timings))
                case Delta(channel=channel, text=text):
                    key = "reasoning_content" if channel == "reasoning" else "content"
                    made = choice({key: text}, records=event.logprobs)
                    yield head.chunk(CHUNK, made, **head.live(event.timings))
                case Called():
                    opening, given = rendering.calls.deltas(event.index, event.call)
                    live = head.live(event.timings)
                    yield head.chunk(CHUNK, choice({"tool_calls": [opening]}, records=event.logprobs), **live)
                    yield head.chunk(CHUNK, choice({"tool_calls": [given]}), **live)
                case Done(result=result):
                    if event.logprobs and rendering.token_bytes is not None:
                        yield head.chunk(CHUNK, choice({}, records=event.logprobs))
                    for chunk in head.ending(CHUNK, choice({}, finish_reason(result)), choice({}), result):
                        yield chunk


def _progress(event: Progress) -> dict[str, int]:
    counts = {"total": event.total, "cache": event.cache, "processed": event.processed}
    return {**counts, "time_ms": int(event.time_ms)}
