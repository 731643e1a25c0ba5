"""Sampling parameters: a request's fields over process flags over the model's preset."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ninfer_core.api import ApiError, OptionValues, Preset, SamplingRequest

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


def _check(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ApiError("invalid_value", f"{name} must be a finite number.", param=name)
