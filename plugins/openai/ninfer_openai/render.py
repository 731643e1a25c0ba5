"""Results on the wire: the aggregate completion and the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Delta, Done, Generation, Progress, Result, Started, TokenLogprob
from ninfer_core.api.http import DONE, sse_event

from .logprobs import TokenBytes, choice_logprobs

FINISH = {
    "stop_token": "stop",
    "stop_string": "stop",
    "output_limit": "length",
    "context_capacity": "length",
    "cancelled": "stop",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """What every object of one response carries, and what the client asked to see."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    usage_choice: bool = False  # --usage-chunk-choice
    timings_per_token: bool = False
    token_bytes: TokenBytes | None = None  # None: no log probabilities were asked for

    def logprobs(self, records: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """A choice's ``logprobs``; null when not asked for."""
        return None if self.token_bytes is None else choice_logprobs(records, self.token_bytes)


def completion(result: Result, rendering: Rendering) -> dict[str, Any]:
    """The aggregate ``chat.completion`` object."""
    message: dict[str, Any] = {"role": "assistant", "content": result.content}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    message["refusal"] = None
    logprobs = rendering.logprobs(result.logprobs)
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": FINISH[result.finish]}
    return {
        "id": rendering.id,
        "object": "chat.completion",
        "created": rendering.created,
        "model": rendering.model,
        "choices": [choice],
        "usage": usage(result),
        "timings": result.timings.to_json(),
    }


def usage(result: Result) -> dict[str, Any]:
    """Token counts; ``completion_tokens`` includes the stop token."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
    }


async def chunks(generation: Generation, rendering: Rendering) -> AsyncIterator[bytes]:
    """The event stream: role, progress, deltas, finish, usage when asked for, ``[DONE]``.

    A record of a token goes out with the chunk of its text; records without any text follow in a chunk of their own.
    """
    async with generation:
        async for event in generation:
            match event:
                case Started():
                    yield _chunk(rendering, {"role": "assistant", "content": ""})
                case Progress():
                    yield _progress(rendering, event)
                case Delta(channel=channel, text=text):
                    key = "reasoning_content" if channel == "reasoning" else "content"
                    extra: dict[str, Any] = {"timings": event.timings.to_json()} if rendering.timings_per_token else {}
                    yield _chunk(rendering, {key: text}, records=event.logprobs, **extra)
                case Done(result=result):
                    if event.logprobs and rendering.token_bytes is not None:
                        yield _chunk(rendering, {}, records=event.logprobs)
                    for chunk in _ending(rendering, result):
                        yield chunk


def _ending(rendering: Rendering, result: Result) -> list[bytes]:
    """Finish chunk, usage chunk, end mark; ``timings`` on the last JSON chunk."""
    timings: dict[str, Any] = {"timings": result.timings.to_json()}
    finish = FINISH[result.finish]
    if not rendering.include_usage:
        return [_chunk(rendering, {}, finish=finish, **timings), DONE]
    head = _head(rendering)
    head["choices"] = [_choice({}, None)] if rendering.usage_choice else []
    return [_chunk(rendering, {}, finish=finish), sse_event({**head, "usage": usage(result), **timings}), DONE]


def _progress(rendering: Rendering, event: Progress) -> bytes:
    counts = {"total": event.total, "cache": event.cache, "processed": event.processed, "time_ms": int(event.time_ms)}
    extra: dict[str, Any] = {"timings": event.timings.to_json()} if rendering.timings_per_token else {}
    return _chunk(rendering, {}, prompt_progress=counts, **extra)


def _chunk(
    rendering: Rendering,
    delta: dict[str, str],
    *,
    finish: str | None = None,
    records: Sequence[TokenLogprob] = (),
    **extra: Any,
) -> bytes:
    head = _head(rendering)
    head["choices"] = [_choice(delta, finish, rendering.logprobs(records) if records else None)]
    if rendering.include_usage:
        head["usage"] = None
    return sse_event({**head, **extra})


def _head(rendering: Rendering) -> dict[str, Any]:
    return {
        "id": rendering.id,
        "object": "chat.completion.chunk",
        "created": rendering.created,
        "model": rendering.model,
    }


def _choice(delta: dict[str, str], finish: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
