"""The sampler a client asks for, read the same way from every protocol's fields."""

from __future__ import annotations

from typing import Any

from .bodies import invalid_value
from .jobs import SamplingRequest

WIDEST_TOP_K = 20  # the sampler's candidate domain


def sampling_request(wire: Any, place: str = "") -> SamplingRequest:
    """Of a struct with all of a sampler's fields, a body or its ``post_thinking``; ApiError for a seed of more than 64
    bits. ``top_k`` above the sampler's domain is clamped, not refused: other servers default to 40."""
    return SamplingRequest(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=clamped_top_k(wire.top_k),
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        seed=checked_seed(wire.seed, f"{place}seed"),
    )


def clamped_top_k(value: int | None) -> int | None:
    return None if value is None else min(value, WIDEST_TOP_K)


def checked_seed(value: int | None, place: str) -> int | None:
    """ApiError for what is no signed number of 64 bits."""
    if value is not None and not -(1 << 63) <= value < 1 << 63:
        raise invalid_value(place, value, "a whole number of 64 bits, with sign")
    return value
