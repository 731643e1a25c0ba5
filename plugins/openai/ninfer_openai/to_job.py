"""A Chat Completions body as the core's ``ChatJob``."""

from __future__ import annotations

from typing import Any

from ninfer_core.api import ApiError, ChatJob, Message, SamplingRequest
from ninfer_core.api.http import invalid_value, not_supported, quoted

from .messages import messages
from .refusals import refuse_unsupported
from .types import ChatBody, PostThinking

WIDEST_TOP_K = 20  # the sampler's candidate domain
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
UNSPECIFIED_EFFORTS = (None, "default", "auto")
TYPED_KWARGS = ("enable_thinking", "preserve_thinking", "reasoning_effort")
RESERVED_KWARGS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")


def to_job(body: ChatBody, *, request_id: str, assistant_prefill: bool) -> ChatJob:
    """The job. ApiError 400 for everything this server cannot do as asked."""
    refuse_unsupported(body)
    conversation = messages(body.messages)
    kwargs = dict(body.chat_template_kwargs or {})
    typed = {name: kwargs.pop(name, None) for name in TYPED_KWARGS}
    _check_kwargs(kwargs)
    thinking = _agreed("enable_thinking", body.enable_thinking, typed["enable_thinking"])
    thinking, effort = _effort(thinking, _agreed("reasoning_effort", body.reasoning_effort, typed["reasoning_effort"]))
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return ChatJob(
        messages=conversation,
        sampling=sampling(body),
        max_tokens=None if limit == -1 else limit,
        max_tokens_is_open=limit == -1,
        stops=_stops(body.stop),
        ignore_eos=body.ignore_eos,
        logprobs=_logprobs(body),
        want_progress=bool(body.return_progress and body.stream),
        request_id=request_id,
        protocol="openai-chat",
        thinking=thinking,
        effort=effort,
        preserve_thinking=_agreed("preserve_thinking", body.preserve_thinking, typed["preserve_thinking"]),
        thinking_budget=body.thinking_budget,
        post_thinking=None if body.post_thinking is None else sampling(body.post_thinking, "post_thinking."),
        template_kwargs=kwargs,
        prefill=assistant_prefill and _is_prefill(conversation, thinking),
    )


def sampling(wire: ChatBody | PostThinking, place: str = "") -> SamplingRequest:
    """``top_k`` above the sampler's domain is clamped, not refused: other servers default to 40."""
    if wire.seed is not None and not -(1 << 63) <= wire.seed < 1 << 63:
        raise invalid_value(f"{place}seed", wire.seed, "a whole number of 64 bits, with sign")
    return SamplingRequest(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=None if wire.top_k is None else min(wire.top_k, WIDEST_TOP_K),
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        seed=wire.seed,
    )


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


def _agreed(field: str, top: Any, inner: Any) -> Any:
    """A value given at top level, in ``chat_template_kwargs``, or in both alike; null is unspecified."""
    param = f"chat_template_kwargs.{field}"
    kind = str if field == "reasoning_effort" else bool
    if inner is not None and not isinstance(inner, kind):
        raise ApiError(
            "invalid_type",
            f"'{param}' must be {'a string' if kind is str else 'true or false'}, but is {quoted(inner)}.",
            param=param,
        )
    if top is not None and inner is not None and top != inner:
        raise ApiError("invalid_value", f"'{param}' is {quoted(inner)}, but '{field}' is {quoted(top)}.", param=param)
    return inner if top is None else top


def _effort(thinking: bool | None, effort: str | None) -> tuple[bool | None, str | None]:
    """Whether to think, and how hard; ``none`` is not to think."""
    if effort in UNSPECIFIED_EFFORTS:
        return thinking, None
    if effort == "none":
        if thinking:
            text = "'reasoning_effort' is \"none\", but 'enable_thinking' is true."
            raise ApiError("invalid_value", text, param="reasoning_effort")
        return False, None
    if effort not in EFFORTS:
        raise invalid_value("reasoning_effort", effort, f"one of none, {', '.join(EFFORTS)}")
    return thinking, effort


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    for key in kwargs:
        if key in RESERVED_KWARGS or key.endswith("_token"):
            param = f"chat_template_kwargs.{key}"
            raise ApiError("invalid_value", f"'{param}' cannot be set: the server fills it.", param=param)


def _is_prefill(conversation: tuple[Message, ...], thinking: bool | None) -> bool:
    """Whether the last message is a turn to continue; ``assistant_prefill_not_supported`` when it cannot be."""
    last = conversation[-1]
    if last.role != "assistant":
        return False
    if last.tool_calls or last.reasoning:
        text = f"A turn to continue is text only; '{last.place}' has reasoning or tool calls."
        raise not_supported("assistant_prefill", text, param=last.place)
    if thinking is not False:
        text = f"'{last.place}' can be continued only without thinking; send 'enable_thinking' false with it."
        raise not_supported("assistant_prefill", text, param=last.place)
    return True
