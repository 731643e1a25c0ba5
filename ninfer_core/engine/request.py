"""A prepared request on its way to a lane."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.api import ReasoningSyntax
from ninfer_core.api.jobs import FinishReason
from ninfer_core.engine.generation import LocalGeneration
from ninfer_core.engine.thinking import ThinkingBudget
from ninfer_core.kv.pages import pages_for
from ninfer_core.kv.prefix import Prefix
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.text.tool_reader import ToolReading


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything the engine thread needs; nothing in it changes."""

    id: int  # monotonic from 1
    prompt_ids: tuple[int, ...]
    tool_texts: tuple[tuple[int, ...], ...]
    reasoning: ReasoningSyntax | None
    in_reasoning: bool
    raw: bool
    params: SamplingParams
    post_params: SamplingParams | None  # of the answer, once the reasoning has closed
    budget: ThinkingBudget | None
    logprobs: int | None
    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    limit: int  # output tokens, at least 1
    limit_finish: FinishReason  # what reaching the limit is called
    want_progress: bool
    deadline: float  # monotonic seconds; None of it applies after admission
    submitted: float  # monotonic seconds
    generation: LocalGeneration | None  # None: the engine's own warm-up
    tools: ToolReading | None = None  # None: the answer is text alone
    scored: tuple[int, ...] = ()  # tokens whose log probability as the first output token is wanted
    transport_id: str = ""  # the frontend's id of the exchange, for the log
    protocol: str = ""  # likewise
    asked_effort: str | None = None  # the reasoning effort the client named itself, for the log
    prefix: Prefix | None = None  # what its group begins with; the prompt is processed in two parts then

    @property
    def entitlement(self) -> int:
        """Pages this request may come to need; the last output token never enters the cache (engine.md §5.1)."""
        return pages_for(len(self.prompt_ids) + max(self.limit - 1, 0))

    @property
    def cancelled(self) -> bool:
        return self.generation is not None and self.generation.cancelled


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """A request's output limit and what reaching it means."""

    tokens: int
    finish: FinishReason


def output_budget(
    *, prompt: int, requested: int | None, max_context: int, share_pages: int, default: int | None
) -> OutputBudget:
    """The effective output limit (engine.md §5.1-5.2).

    ``requested`` None takes ``default``, else the largest output whose pages fit one lane's ``share_pages`` of the
    pool;
    a prompt that alone overruns the share keeps the whole remaining context. ``prompt`` <= ``max_context``.
    """
    room = max_context - prompt + 1
    if requested is None:
        requested = default
    if requested is None:
        share = share_pages * 64 - prompt + 1
        requested = room if share < 1 else min(share, room)
        return OutputBudget(requested, "context_capacity" if requested == room else "output_limit")
    return OutputBudget(min(requested, room), "output_limit" if requested <= room else "context_capacity")
