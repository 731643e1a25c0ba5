"""Sampling parameters: a request's fields over process flags over the model's preset."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ninfer_core.api import ApiError, OptionValues, Preset, PromptFormat, SamplingRequest, floating, integer

DOMAIN = 20
FIELDS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """One row's sampler, fully resolved. ``temperature`` 0 is greedy; ``seed`` is taken modulo 2^64."""

    temperature: float
    top_p: float
    top_k: int  # 1..20
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    seed: int

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def penalized(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    def describe(self) -> Mapping[str, Any]:
        """The sampler as the request log and ``generation_settings`` show it."""
        return asdict(self)


def resolve(request: SamplingRequest, preset: Preset, flags: OptionValues) -> SamplingParams:
    """Layer the three sources. ``top_k`` of 0, or above the domain, is the domain; ``--greedy`` wins over all."""
    chosen: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(request, name)
        if value is None:
            value = flags.get(name)
        chosen[name] = getattr(preset, name) if value is None else value
    _check(chosen)
    top_k = chosen["top_k"]
    chosen["top_k"] = DOMAIN if top_k <= 0 or top_k > DOMAIN else top_k
    if flags.get("greedy") or chosen["temperature"] < 0:
        chosen["temperature"] = 0.0
    seed = request.seed if request.seed is not None else flags.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    return SamplingParams(**chosen, seed=seed)


POST_FLAGS = ("post_thinking_temperature", "post_thinking_top_p", "post_thinking_top_k", "post_thinking_sampler")
POST_TEMPERATURE = 0.2


def post_thinking_by_default(flags: OptionValues) -> bool:
    """Whether every thinking request samples its answer apart: ``--post-thinking``, or any override of it."""
    return bool(flags.get("post_thinking")) or any(flags.get(name) is not None for name in POST_FLAGS)


def resolve_post_thinking(
    request: SamplingRequest, format: PromptFormat, flags: OptionValues, seed: int
) -> SamplingParams:
    """The answer's sampler: request fields over the server's post-thinking flags over the preset, which is the thinking
    preset with temperature 0.2. ``seed``: the request's own, which an omitted one continues."""
    thinking = format.thinking_preset or format.preset
    preset = format.post_thinking_preset or replace(thinking, temperature=POST_TEMPERATURE)
    own: dict[str, Any] = dict(flags.get("post_thinking_sampler") or {})
    for name in ("temperature", "top_p", "top_k"):
        value = flags.get(f"post_thinking_{name}")
        if value is not None:
            own[name] = value
    layered = OptionValues({**dict.fromkeys(FIELDS), **own, "greedy": flags.get("greedy"), "seed": seed}, frozenset())
    return resolve(request, preset, layered)


def sampler_fields(value: str) -> dict[str, float | int]:
    """``temp=F,top_p=F,top_k=N[,min_p=F,presence=F,frequency=F]`` by field; ValueError with what is accepted."""
    accepted = "temp=F,top_p=F,top_k=N[,min_p=F,presence=F,frequency=F]"
    found: dict[str, float | int] = {}
    for piece in value.split(","):
        key, _, number = piece.strip().partition("=")
        name, parse = SPELLED.get(key, ("", None))
        if parse is None or name in found:
            raise ValueError(accepted)
        try:
            found[name] = parse(number)
        except ValueError as error:
            raise ValueError(f"{accepted}, {key} being {error}") from None
    return found


SPELLED: dict[str, tuple[str, Callable[[str], float | int] | None]] = {
    "temp": ("temperature", floating(0, 2)),
    "top_p": ("top_p", floating(0, 1)),
    "top_k": ("top_k", integer(0, DOMAIN)),
    "min_p": ("min_p", floating(0, 1)),
    "presence": ("presence_penalty", floating(-2, 2)),
    "frequency": ("frequency_penalty", floating(-2, 2)),
}


def _check(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ApiError("invalid_value", f"{name} must be a finite number.", param=name)
