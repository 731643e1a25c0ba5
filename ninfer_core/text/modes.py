"""What a chat asks of the model's thinking, from the request, the server's defaults and the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import ApiError, ChatJob, OptionError, PromptFormat

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts from least to most; "none" is not to think."""

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
_FUNCTIONS = frozenset({"raise_exception", "strftime_now", "range", "dict", "namespace"})
_NULL_IS_UNSPECIFIED = frozenset({"enable_thinking", "preserve_thinking", "reasoning_effort", "add_vision_id"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """The operator's; None leaves the choice to the template."""

    thinking: bool | None = None
    effort: str | None = None
    preserve_thinking: bool | None = None

    def check(self) -> None:
        """OptionError when they contradict each other."""
        if self.effort is not None and self.effort not in ("none", *EFFORTS):
            raise OptionError(f"--default-reasoning-effort {self.effort!r}: expected one of none, {', '.join(EFFORTS)}")
        if self.thinking is False and self.effort not in (None, "none"):
            raise OptionError(
                f"--default-reasoning-effort {self.effort} conflicts with --no-thinking; leave one out, or say none"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """``settings`` are template variables the server vouches for; ``client`` those of the client's own."""

    thinking: bool  # whether the turn may reason
    explicit: bool | None  # what the request itself says about thinking
    settings: Mapping[str, Any]
    client: Mapping[str, Any]


def resolve(job: ChatJob, model: PromptFormat, defaults: Defaults, accept: Callable[[str], str]) -> Mode:
    """Request over server over template. ``accept`` maps an effort to one the template takes. A forced tool call leaves
    no room to think: defaults give way to it.

    ApiError 400 when a typed field and ``chat_template_kwargs`` disagree, a reserved variable is set, or the request
    asks for thinking and forces a call.
    """
    variable = model.thinking_variable or "enable_thinking"
    client = {
        name: value
        for name, value in job.template_kwargs.items()
        if value is not None or name not in (*_NULL_IS_UNSPECIFIED, variable)
    }
    _check_reserved(client, model)
    explicit = _agreed("enable_thinking", job.thinking, client.pop(variable, None), variable, bool)
    preserve = _agreed(
        "preserve_thinking", job.preserve_thinking, client.pop("preserve_thinking", None), "preserve_thinking", bool
    )
    effort = _agreed("reasoning_effort", job.effort, client.pop("reasoning_effort", None), "reasoning_effort", str)
    if effort is not None and effort not in ("none", *EFFORTS):
        raise _invalid("reasoning_effort", f"must be one of none, {', '.join(EFFORTS)}, but is {effort[:80]!r}")
    if effort == "none":
        if explicit:
            raise _invalid("reasoning_effort", "is none, but 'enable_thinking' is true")
        explicit, effort = False, None
    elif effort is not None and explicit is None and defaults.thinking is False:
        # naming an effort asks for thinking, over the server's default
        explicit = True
    if job.forced_tool is not None and model.reasoning is not None:
        _check_forced(explicit, effort)
        explicit, effort = False, None
    thinking = explicit
    if thinking is None:
        thinking = False if defaults.effort == "none" else defaults.thinking
    if effort is None and thinking is not False and not job.prefill and defaults.effort != "none":
        effort = defaults.effort
    settings: dict[str, Any] = {}
    if thinking is not None:
        settings[variable] = thinking
    if effort is not None and thinking is not False:
        settings["reasoning_effort"] = accept(effort)
    if preserve is None:
        preserve = defaults.preserve_thinking
    if preserve is not None:
        settings["preserve_thinking"] = preserve
    reasons = model.reasoning is not None and (model.thinks_by_default if thinking is None else thinking)
    return Mode(thinking=reasons, explicit=explicit, settings=settings, client=client)


def _check_forced(explicit: bool | None, effort: str | None) -> None:
    if explicit or (effort is not None and explicit is None):
        asked = "enable_thinking" if effort is None else "reasoning_effort"
        text = f"A forced tool call cannot be preceded by thinking, which '{asked}' asks for; leave one of them out."
        raise ApiError("tool_choice_not_supported", text, param="tool_choice")


def nearest_effort(effort: str, accepted: frozenset[str]) -> str:
    """The accepted effort closest to ``effort``, a tie going up; ``effort`` itself when none is accepted."""
    at = EFFORTS.index(effort)
    ranked = sorted((abs(EFFORTS.index(other) - at), -EFFORTS.index(other), other) for other in accepted)
    return ranked[0][2] if ranked else effort


def _check_reserved(client: Mapping[str, Any], model: PromptFormat) -> None:
    for name in client:
        if name in RESERVED or name in _FUNCTIONS or name in model.template_globals or name.endswith("_token"):
            raise _invalid(f"chat_template_kwargs.{name[:80]}", "cannot be set: the server fills it")


def _agreed(field: str, typed: Any, given: Any, variable: str, kind: type) -> Any:
    """A value given as a field of its own, among the template's variables, or as both alike."""
    place = f"chat_template_kwargs.{variable}"
    if given is not None and not isinstance(given, kind):
        raise _invalid(place, "must be a string" if kind is str else "must be true or false")
    if typed is not None and given is not None and typed != given:
        raise _invalid(place, f"disagrees with '{field}'")
    return given if typed is None else typed


def _invalid(place: str, what: str) -> ApiError:
    return ApiError("invalid_value", f"'{place}' {what}.", param=place)
