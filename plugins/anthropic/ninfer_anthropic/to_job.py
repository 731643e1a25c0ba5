"""A body of Messages as the core's ``ChatJob``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ninfer_core.api import ApiError, ChatJob, SamplingRequest
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.http import invalid_value, not_supported, quoted
from ninfer_core.api.samplers import clamped_top_k, sampling_request

from .blocks import is_boundary
from .conversation import Turn, conversation, joined
from .tools import ToolSet, dropped_servers, tool_set
from .types import MessagesBody, PromptBody, ThinkingIn

SMALLEST_BUDGET = 1024
EFFORTS = ("low", "medium", "high", "xhigh", "max")
TEMPLATE_EFFORTS = ("none", "minimal", *EFFORTS)
MODES = {"disabled": False, "adaptive": True, "enabled": True}
DISPLAYS = (None, "summarized", "omitted")


@dataclass(frozen=True, kw_only=True, slots=True)
class Leniency:
    """What the operator lets pass or left out."""

    tools: bool = False  # --lenient-tools
    volatile_system: bool = False  # --strip-volatile-system


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A job, and what of the request is not in it."""

    job: ChatJob
    dropped_tools: tuple[str, ...] = ()
    omits_thinking: bool = False


def to_job(body: MessagesBody, *, request_id: str, leniency: Leniency) -> Asked:
    """The job. ApiError 400 for everything this server cannot do as asked."""
    asked = prompt_job(body, leniency)
    if body.output_config is not None and body.output_config.format is not None:
        text = "Output is not constrained: 'output_config.format' has to be left out."
        raise not_supported("response_format", text, param="output_config.format")
    if body.max_tokens is not None and body.max_tokens < 1:
        text = f"'max_tokens' must be at least 1, but is {body.max_tokens}: a prompt is not processed for its own sake."
        raise ApiError("invalid_value", text, param="max_tokens")
    job = replace(
        asked.job,
        sampling=SamplingRequest(temperature=body.temperature, top_p=body.top_p, top_k=clamped_top_k(body.top_k)),
        post_thinking=None if body.post_thinking is None else sampling_request(body.post_thinking, "post_thinking."),
        max_tokens=body.max_tokens,
        stops=tuple(body.stop_sequences or ()),
        request_id=request_id,
    )
    return replace(asked, job=job)


def prompt_job(body: PromptBody, leniency: Leniency) -> Asked:
    """What makes the prompt, the same for an answer and for a count."""
    servers: tuple[str, ...] = ()
    if leniency.tools:
        servers = dropped_servers(body.mcp_servers)
        body = msgspec.structs.replace(body, mcp_servers=None)
    refuse_unsupported(body)
    turns = joined(body.messages)
    messages = conversation(body.system, turns, strip_volatile=leniency.volatile_system)
    kwargs = dict(body.chat_template_kwargs or {})
    thinking, effort = _reasoning(body, kwargs)
    prefill = turns[-1].role == "assistant"
    if prefill:
        _check_prefill(turns[-1], thinking)
    tools = tool_set(body.tools, body.tool_choice, lenient=leniency.tools)
    _check_forced(tools, thinking, prefill)
    preserve = _kwarg(kwargs, "preserve_thinking", bool)
    job = ChatJob(
        messages=messages,
        thinking=thinking,
        # an answer that begins with a call has nothing to think about
        effort=None if tools.forced is not None else effort,
        preserve_thinking=_agreed("preserve_thinking", body.preserve_thinking, "preserve_thinking", preserve),
        thinking_budget=None if body.thinking is None else _budget(body.thinking),
        template_kwargs=kwargs,
        prefill=prefill,
        tools=tools.offered,
        forced_tool=tools.forced,
        single_call=tools.single,
        cache_boundary=is_boundary(body.cache_control),
        protocol="anthropic-messages",
    )
    omits = body.thinking is not None and body.thinking.display == "omitted"
    return Asked(job=job, dropped_tools=(*tools.dropped, *servers), omits_thinking=omits)


def _reasoning(body: PromptBody, kwargs: dict[str, Any]) -> tuple[bool | None, str | None]:
    """Whether to think, and how hard, from the typed fields and the template's variables; those taken are removed."""
    typed = None if body.thinking is None else _mode(body.thinking)
    thinking = _agreed("thinking.type", typed, "enable_thinking", _kwarg(kwargs, "enable_thinking", bool))
    asked = None if body.output_config is None else body.output_config.effort
    if asked is not None and asked not in EFFORTS:
        raise invalid_value("output_config.effort", asked, f"one of {', '.join(EFFORTS)}")
    given = _kwarg(kwargs, "reasoning_effort", str)
    if given is not None and given not in TEMPLATE_EFFORTS:
        raise invalid_value("chat_template_kwargs.reasoning_effort", given, f"one of {', '.join(TEMPLATE_EFFORTS)}")
    effort = _agreed("output_config.effort", asked, "reasoning_effort", given)
    if effort == "none":
        if thinking:
            text = "'chat_template_kwargs.reasoning_effort' is \"none\", but thinking is enabled."
            raise ApiError("invalid_value", text, param="chat_template_kwargs.reasoning_effort")
        return False, None
    return thinking, effort


def _mode(wire: ThinkingIn) -> bool:
    if wire.type not in MODES:
        raise invalid_value("thinking.type", wire.type, f"one of {', '.join(MODES)}")
    if wire.display not in DISPLAYS:
        raise invalid_value("thinking.display", wire.display, "summarized or omitted")
    return MODES[wire.type]


def _budget(wire: ThinkingIn) -> int | None:
    """The cap of reasoning in tokens; without reasoning there is none, whatever was sent."""
    tokens, param = wire.budget_tokens, "thinking.budget_tokens"
    if wire.type == "disabled":
        return None
    if wire.type == "adaptive":
        if tokens is not None:
            text = f"'{param}' is {tokens}, but counts only beside a 'thinking.type' of enabled."
            raise ApiError("invalid_value", text, param=param)
        return None
    if tokens is None:
        raise ApiError("missing_required_parameter", f"'{param}' is required: it is a whole number.", param=param)
    if tokens < SMALLEST_BUDGET:
        raise invalid_value(param, tokens, f"at least {SMALLEST_BUDGET}")
    return tokens


def _check_prefill(turn: Turn, thinking: bool | None) -> None:
    """An answer can be continued when it is text and nothing was thought before it."""
    for one in turn.content:
        if one.block.type != "text":
            text = f"A turn to continue is text only; '{one.place}' is of type {quoted(one.block.type)}."
            raise ApiError("assistant_prefill_not_supported", text, param=one.place)
    if thinking is not False:
        text = f"'{turn.place}' can be continued only without thinking; send 'thinking' of type disabled with it."
        raise ApiError("assistant_prefill_not_supported", text, param=turn.place)


def _check_forced(tools: ToolSet, thinking: bool | None, prefill: bool) -> None:
    """A forced call begins the answer: nothing may come before it."""
    text = ""
    if tools.forced is not None and thinking:
        text = "A call can be forced only without thinking; send 'thinking' of type disabled with this 'tool_choice'."
    elif tools.forced is not None and prefill:
        text = "A call can be forced only at the beginning of an answer; the last message is an answer already."
    if text:
        raise ApiError("tool_choice_not_supported", text, param="tool_choice")


def _kwarg(kwargs: dict[str, Any], name: str, kind: type) -> Any:
    """Take one of the template's variables that is a field of its own here; null is unspecified."""
    value = kwargs.pop(name, None)
    if value is not None and not isinstance(value, kind):
        param = f"chat_template_kwargs.{name}"
        accepted = "a string" if kind is str else "true or false"
        raise ApiError("invalid_type", f"'{param}' must be {accepted}, but is {quoted(value)}.", param=param)
    return value


def _agreed(field: str, typed: Any, name: str, given: Any) -> Any:
    """A value given as a field, among the template's variables, or as both alike."""
    if typed is not None and given is not None and typed != given:
        param = f"chat_template_kwargs.{name}"
        raise ApiError("invalid_value", f"'{param}' is {quoted(given)}, which disagrees with '{field}'.", param=param)
    return given if typed is None else typed
