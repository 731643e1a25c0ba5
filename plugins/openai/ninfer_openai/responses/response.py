"""The Response object: what the request asked, how it ended, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ApiError, Result
from ninfer_core.api.jobs import FinishReason

from .items import Item
from .tools import ToolSet
from .types import CreateBody

STATUS: dict[FinishReason, str] = {
    "stop_token": "completed",
    "stop_string": "completed",
    "output_limit": "incomplete",
    "context_capacity": "incomplete",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What every object of one Response has. ``echo``: the members that repeat the request."""

    id: str
    created_at: int
    echo: Mapping[str, Any]

    def running(self) -> dict[str, Any]:
        """Nothing came of it yet."""
        return self._object("in_progress")

    def ended(self, result: Result, output: Sequence[Item], now: int) -> dict[str, Any]:
        """The terminal object."""
        status = STATUS[result.finish]
        return self._object(
            status,
            output=output,
            usage=usage(result),
            completed_at=now if status == "completed" else None,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
        )

    def failed(self, error: ApiError, output: Sequence[Item], used: Mapping[str, Any] | None) -> dict[str, Any]:
        """It ended in an error after it had begun; ``output`` and ``used``: what had come of it by then."""
        told = {"code": error.code or "server_error", "message": error.message}
        return self._object("failed", output=output, error=told, usage=used)

    def _object(self, status: str, *, output: Sequence[Item] = (), **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "completed_at": more.get("completed_at"),
            "error": more.get("error"),
            "incomplete_details": more.get("incomplete_details"),
            **self.echo,
            "output": output,
            "usage": more.get("usage"),
        }


def echo(body: CreateBody, tools: ToolSet, *, model: str, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The members that repeat the request. ``sampling``: the resolved sampler."""
    reasoning: dict[str, Any] = {"effort": None, "summary": None}
    if body.reasoning is not None:
        asked = body.reasoning
        reasoning = {"effort": asked.effort, "summary": asked.summary or asked.generate_summary}
        if asked.generate_summary is not None:
            reasoning["generate_summary"] = asked.generate_summary
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": sampling.get("temperature", body.temperature),
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
        "tools": tools.shown,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.get("top_p", body.top_p),
        "truncation": "disabled",
        "user": body.user,
    }


def usage(result: Result) -> dict[str, Any]:
    """Token counts; ``output_tokens`` includes a withheld stop token."""
    return counts(result.prompt_tokens, result.cached_tokens, result.completion_tokens, result.reasoning_tokens)


def counts(prompt: int, cached: int, output: int, reasoning: int) -> dict[str, Any]:
    """The wire's object of them."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + output,
    }
