"""A completion on the wire: llama.cpp's object, whole or as the last event of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Delta, Done, Engine, Generation, Progress, RawJob, Result, Started
from ninfer_core.api.http import sse_event

STOP_TYPE = {
    "stop_token": "eos",
    "stop_string": "word",
    "output_limit": "limit",
    "context_capacity": "limit",
    "cancelled": "none",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """What the client asked to see."""

    engine: Engine
    job: RawJob
    stream: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: Sequence[str] | None = None


async def completion(generation: Generation, result: Result, rendering: Rendering) -> dict[str, Any]:
    """The full object; of a stream, its last event, whose content went out before and is empty."""
    text = result.reasoning + result.content
    whole = {
        "content": "" if rendering.stream else text,
        "tokens": list(result.token_ids) if rendering.return_tokens else [],
        "id_slot": result.lane,
        "stop": True,
        "model": rendering.engine.info.id,
        "tokens_predicted": result.completion_tokens,
        "tokens_evaluated": result.prompt_tokens,
        "tokens_cached": result.cached_tokens,
        "generation_settings": settings(generation, rendering),
        "prompt": await rendering.engine.detokenize(result.prompt_ids),
        "has_new_line": "\n" in text,
        "truncated": False,  # the context is never shifted
        "stop_type": STOP_TYPE[result.finish],
        "stopping_word": result.stop_string or "",
        "timings": result.timings.to_json(),
    }
    return whole if not rendering.response_fields else only(whole, rendering.response_fields)


def settings(generation: Generation, rendering: Rendering) -> dict[str, Any]:
    """What the request resolved to."""
    job, sampler = rendering.job, generation.sampling
    names = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
    return {
        "n_predict": generation.max_tokens,
        "max_tokens": generation.max_tokens,
        "seed": sampler["seed"],
        **{name: sampler[name] for name in names},
        "stop": list(job.stops),
        "ignore_eos": job.ignore_eos,
        "stream": rendering.stream,
        "timings_per_token": rendering.timings_per_token,
    }


def only(whole: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The named members; ``a/b`` is member b of a, reported under that path. Unknown names are left out."""
    kept: dict[str, Any] = {}
    for field in fields:
        value: Any = whole
        for step in field.split("/"):
            if not isinstance(value, Mapping) or step not in value:
                break
            value = value[step]
        else:
            kept[field] = value
    return kept


async def chunks(generation: Generation, rendering: Rendering) -> AsyncIterator[bytes]:
    """The event stream. It ends with the full object; there is no ``[DONE]``."""
    prompt_tokens = 0
    async with generation:
        async for event in generation:
            match event:
                case Started():
                    prompt_tokens = event.prompt_tokens
                case Progress():
                    counts = {"total": event.total, "cache": event.cache, "processed": event.processed}
                    progress = {"prompt_progress": {**counts, "time_ms": int(event.time_ms)}}
                    yield _chunk("", event, prompt_tokens, rendering, **progress)
                case Delta():
                    yield _chunk(event.text, event, prompt_tokens, rendering)
                case Done():
                    yield sse_event(await completion(generation, event.result, rendering))


def _chunk(text: str, event: Progress | Delta, prompt_tokens: int, rendering: Rendering, **extra: Any) -> bytes:
    timings = event.timings.to_json()
    chunk = {
        "content": text,
        "tokens": [],
        "stop": False,
        "tokens_predicted": event.timings.predicted_n,
        "tokens_evaluated": prompt_tokens,
        **extra,
    }
    return sse_event({**chunk, "timings": timings} if rendering.timings_per_token else chunk)
