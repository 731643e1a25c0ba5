"""How positions turn into angles: the trained frequencies, or stretched as options or the checkpoint ask.

Precedence (``spec/kv-dtypes.md`` §11): linear interpolation, a fixed YaRN factor, YaRN at the factor the context
needs, the checkpoint's own YaRN, plain. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Option, Refusal, floating, integer

from .config import Qwen35Config

LONGEST = 4  # times the native window, in every mode

ROPE_OPTIONS = (
    Option(
        flag="--rope-yarn",
        default=False,
        help="past the model's native window, YaRN at factor --max-context / native instead of plain rotary embedding "
        "for the text and MTP layers",
    ),
    Option(
        flag="--rope-yarn-factor",
        metavar="F",
        parse=floating(1, 4),
        default=1.0,
        default_text="1: as --rope-yarn decides",
        help="YaRN at this factor for every position, whatever --max-context is",
    ),
    Option(
        flag="--rope-scaling-factor",
        metavar="F",
        parse=floating(1, 32),
        default=1.0,
        default_text="1: off",
        help="instead of YaRN, linear interpolation: a position past --rope-scaling-original-context turns as original "
        "+ (position - original) / F",
    ),
    Option(
        flag="--rope-scaling-original-context",
        metavar="N",
        parse=integer(1, 1 << 24),
        default_text="the native window",
        help="tokens up to which --rope-scaling-factor leaves positions as they are",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RopePlan:
    """At most one of the two differs from its default."""

    yarn_factor: float = 1.0  # 1: plain
    native_context: int  # tokens
    linear_factor: float = 1.0  # 1: off
    linear_from: int = 0  # tokens


def rope_plan(c: Qwen35Config, options: Mapping[str, Any], max_context: int) -> RopePlan:
    """The mode of one engine; Refusal for options that exclude each other."""
    native = c.native_context
    linear, factor = options.get("rope_scaling_factor", 1.0), options.get("rope_yarn_factor", 1.0)
    asked, start = options.get("rope_yarn", False), options.get("rope_scaling_original_context")
    if linear > 1:
        for flag, on in (("--rope-yarn", asked), ("--rope-yarn-factor", factor > 1)):
            if on:
                raise Refusal(f"--rope-scaling-factor {linear:g} excludes {flag}; leave one of them out")
        return RopePlan(native_context=native, linear_factor=linear, linear_from=start or native)
    if start is not None:
        raise Refusal("--rope-scaling-original-context has no effect without --rope-scaling-factor above 1")
    if factor > 1:
        return RopePlan(native_context=native, yarn_factor=factor)
    if asked and max_context > native:
        return RopePlan(native_context=native, yarn_factor=max_context / native)
    if c.rope_scaling is not None:
        return RopePlan(native_context=native, yarn_factor=c.rope_scaling.factor)
    return RopePlan(native_context=native)
