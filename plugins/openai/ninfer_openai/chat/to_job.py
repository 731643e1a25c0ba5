"""A Chat Completions body as the core's ``ChatJob``."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.api import ApiError, ChatJob
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.samplers import sampling_request

from .messages import messages
from .tools import ToolSet, tool_set
from .types import ChatBody

SERVERS_EFFORT = ("default", "auto")


@dataclass(frozen=True, kw_only=True, slots=True)
class Leniency:
    """What the operator lets clients do."""

    assistant_prefill: bool = False
    image_detail: bool = False
    tools: bool = False


def to_job(body: ChatBody, *, request_id: str, lenient: Leniency) -> tuple[ChatJob, ToolSet]:
    """The job and its tools. ApiError 400 for everything this server cannot do as asked; whether thinking, template and
    prefill can be had together is the prompt's to say."""
    refuse_unsupported(body)
    conversation = messages(body.messages, lenient_detail=lenient.image_detail)
    tools = tool_set(body, lenient=lenient.tools)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    job = ChatJob(
        messages=conversation,
        sampling=sampling_request(body),
        max_tokens=None if limit == -1 else limit,
        max_tokens_is_open=limit == -1,
        stops=_stops(body.stop),
        ignore_eos=body.ignore_eos,
        logprobs=_logprobs(body),
        want_progress=bool(body.return_progress and body.stream),
        request_id=request_id,
        protocol="openai-chat",
        thinking=body.enable_thinking,
        effort=None if body.reasoning_effort in SERVERS_EFFORT else body.reasoning_effort,
        preserve_thinking=body.preserve_thinking,
        thinking_budget=body.thinking_budget,
        post_thinking=None if body.post_thinking is None else sampling_request(body.post_thinking, "post_thinking."),
        template_kwargs=body.chat_template_kwargs or {},
        prefill=lenient.assistant_prefill and conversation[-1].role == "assistant",
        tools=tools.offered,
        forced_tool=tools.forced,
        single_call=body.parallel_tool_calls is False,
    )
    return job, tools


def _logprobs(body: ChatBody) -> int | None:
    """How many rivals of each token to report; None: nothing is reported."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        text = f"'top_logprobs' is {body.top_logprobs}, but counts only beside 'logprobs' true."
        raise ApiError("invalid_value", text, param="top_logprobs")
    return None


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
