"""What the answers of chat and raw completion have in common: head, usage, timings, the end of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Result, Timings
from ninfer_core.api.http import DONE, sse_event

FINISH = {
    "stop_token": "stop",
    "stop_string": "stop",
    "output_limit": "length",
    "context_capacity": "length",
    "cancelled": "stop",
}

Choice = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What every object of one answer carries, and what the client asked to see."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    usage_choice: bool = False  # --usage-chunk-choice
    timings_per_token: bool = False

    def object(self, kind: str, choices: list[Choice]) -> dict[str, Any]:
        """An answer or a chunk without its counts."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": choices}

    def whole(self, kind: str, choice: Choice, result: Result) -> dict[str, Any]:
        """An aggregate answer."""
        counts = {"usage": usage(result), "timings": result.timings.to_json()}
        return {**self.object(kind, [choice]), **counts}

    def chunk(self, kind: str, choice: Choice, **extra: Any) -> bytes:
        """A chunk of a stream; beside a usage chunk the others have none."""
        silent = {"usage": None} if self.include_usage else {}
        return sse_event({**self.object(kind, [choice]), **silent, **extra})

    def live(self, timings: Timings) -> dict[str, Any]:
        """The running timings, where they were asked for."""
        return {"timings": timings.to_json()} if self.timings_per_token else {}

    def ending(self, kind: str, choice: Choice, empty: Choice, result: Result) -> list[bytes]:
        """Finish chunk, usage chunk when asked for, end mark; ``timings`` on the last JSON chunk."""
        timings = {"timings": result.timings.to_json()}
        if not self.include_usage:
            return [self.chunk(kind, choice, **timings), DONE]
        counted = {**self.object(kind, [empty] if self.usage_choice else []), "usage": usage(result), **timings}
        return [self.chunk(kind, choice), sse_event(counted), DONE]


def usage(result: Result) -> dict[str, Any]:
    """Token counts; ``completion_tokens`` includes the stop token."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
    }
