"""A body as what is to be done: the job, the Items of its conversation, and what its Response repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer_core.api import ApiError, ChatJob, Message, Part, SamplingRequest
from ninfer_core.api.fields import refuse_unsupported
from ninfer_core.api.http import invalid_value, not_supported, quoted
from ninfer_core.api.samplers import sampling_request

from .history import conversation
from .input import Placed, read_input
from .items import Ids, Item, MessageItem, decoded
from .store import Record
from .tools import ToolSet, tool_set
from .types import SUMMARIES, CreateBody, PromptBody

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SERVERS_EFFORT = ("default", "auto")
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Leniency:
    """What the operator lets clients do."""

    assistant_history: bool = False
    image_detail: bool = False
    tools: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """``items``: those the request supplied. ``preserve_thinking``: what a child that is silent about it inherits."""

    job: ChatJob
    items: tuple[Item, ...]
    tools: ToolSet
    preserve_thinking: bool | None
    summarizes: bool = False
    encrypts: bool = False


def plan_count(body: PromptBody, *, ids: Ids, parent: Record | None, lenient: Leniency) -> Plan:
    """The prompt alone. ApiError 400 for everything this server cannot do as asked."""
    refuse_unsupported(body)
    _included(body)
    _check_reasoning(body)
    if body.text is not None:
        refuse_unsupported(body.text, "text")
    history = (
        [Placed(item=decoded(raw), place="previous_response_id") for raw in parent.link.history()] if parent else []
    )
    known = [one.item.id for one in history]
    own = read_input(body.input, ids=ids, known=known, lenient_detail=lenient.image_detail)
    if not own:
        _check_user_turn(body, history)
    tools = tool_set(body, lenient=lenient.tools)
    preserve = _preserve_thinking(body, parent)
    job = ChatJob(
        messages=(*_instructions(body), *conversation([*history, *own], lenient=lenient.assistant_history)),
        protocol="openai-responses",
        effort=_effort(body),
        preserve_thinking=preserve,
        template_kwargs=body.chat_template_kwargs or {},
        tools=tools.offered,
        forced_tool=tools.forced,
        single_call=tools.single_call,
    )
    return Plan(job=job, items=tuple(one.item for one in own), tools=tools, preserve_thinking=preserve)


def plan_create(body: CreateBody, *, request_id: str, ids: Ids, parent: Record | None, lenient: Leniency) -> Plan:
    """The whole request. Raises as ``plan_count``."""
    prompt = plan_count(body, ids=ids, parent=parent, lenient=lenient)
    included = _included(body)
    stored = body.store is not False
    wants_logprobs = LOGPROBS in included or bool(body.top_logprobs)
    job = replace(
        prompt.job,
        request_id=request_id,
        sampling=SamplingRequest(temperature=body.temperature, top_p=body.top_p),
        max_tokens=body.max_output_tokens,
        logprobs=body.top_logprobs or 0 if wants_logprobs else None,
        thinking_budget=body.thinking_budget,
        post_thinking=None if body.post_thinking is None else sampling_request(body.post_thinking, "post_thinking."),
        session_key=parent.session_key if parent else f"response:{ids.response}" if stored else None,
        session_read_only=not stored,
    )
    return replace(
        prompt,
        job=job,
        summarizes=body.reasoning is not None and bool(body.reasoning.summary or body.reasoning.generate_summary),
        encrypts=ENCRYPTED in included,
    )


def _instructions(body: PromptBody) -> tuple[Message, ...]:
    if not body.instructions:
        return ()
    return (Message(role="developer", content=(Part(text=body.instructions),), place="instructions"),)


def _check_user_turn(body: PromptBody, history: Sequence[Placed]) -> None:
    """Without input the conversation goes on from a user's turn it already has."""
    if any(isinstance(one.item, MessageItem) and one.item.role == "user" for one in history):
        return
    accepted = "a text that is not empty or at least one Item, unless a previous Response has a user's turn"
    if body.input is None:
        raise ApiError("missing_required_parameter", f"'input' is required: {accepted}.", param="input")
    raise invalid_value("input", body.input, accepted)


def _check_reasoning(body: PromptBody) -> None:
    asked = body.reasoning
    if asked is None:
        return
    refuse_unsupported(asked, "reasoning")
    for name in ("summary", "generate_summary"):
        value = getattr(asked, name)
        if value is not None and value not in SUMMARIES:
            raise invalid_value(f"reasoning.{name}", value, " or ".join(SUMMARIES))
    if asked.summary is not None and asked.generate_summary not in (None, asked.summary):
        text = f"'reasoning.generate_summary' is {quoted(asked.generate_summary)}, but 'reasoning.summary' is "
        raise ApiError("invalid_value", f"{text}{quoted(asked.summary)}.", param="reasoning.generate_summary")


def _effort(body: PromptBody) -> str | None:
    effort = body.reasoning.effort if body.reasoning is not None else None
    if effort is None or effort in SERVERS_EFFORT:
        return None
    if effort not in EFFORTS:
        raise invalid_value("reasoning.effort", effort, f"one of {', '.join(EFFORTS)}")
    if effort == "none" and _variable(body, "enable_thinking") is True:
        text = "'reasoning.effort' is \"none\", but 'chat_template_kwargs.enable_thinking' is true."
        raise ApiError("invalid_value", text, param="reasoning.effort")
    return effort


def _preserve_thinking(body: PromptBody, parent: Record | None) -> bool | None:
    """The request's value, else the parent's; the template's variable and the field agree."""
    given, variable = body.preserve_thinking, _variable(body, "preserve_thinking")
    if variable is not None and not isinstance(variable, bool):
        raise invalid_value("chat_template_kwargs.preserve_thinking", variable, "true or false")
    if given is not None and variable is not None and given != variable:
        param = "chat_template_kwargs.preserve_thinking"
        text = f"'{param}' is {quoted(variable)}, but 'preserve_thinking' is {quoted(given)}."
        raise ApiError("invalid_value", text, param=param)
    resolved = variable if given is None else given
    return parent.preserve_thinking if resolved is None and parent is not None else resolved


def _variable(body: PromptBody, name: str) -> Any:
    return (body.chat_template_kwargs or {}).get(name)


def _included(body: PromptBody) -> frozenset[str]:
    included = body.include or []
    for at, value in enumerate(included):
        if value not in (ENCRYPTED, LOGPROBS):
            text = f"'include[{at}]' must be {ENCRYPTED} or {LOGPROBS}, but is {quoted(value)}."
            raise not_supported("include", text, param=f"include[{at}]")
    return frozenset(included)
