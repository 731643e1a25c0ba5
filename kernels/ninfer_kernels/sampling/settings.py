"""How each row draws, as the whole numbers that travel to a GPU with everything else of its round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .reference import TINY
from .rng import MASK

NUMBERS = 9  # of one row: seed, purpose, top_k, greedy, then as bits: temperature, top_p, min_p, presence, frequency


class Settings(NamedTuple):
    """One row's. ``temperature`` 0 is greedy; its log probabilities then are at temperature 1. The penalties are those
    that a kernel is to apply."""

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int
    position: int
    purpose: int
    presence: float = 0.0
    frequency: float = 0.0


def packed(row: Settings) -> list[int]:
    """[NUMBERS] for int64, the position left out: it changes with every token."""
    temperature = max(row.temperature, TINY) if row.temperature > 0 else 1.0
    with np.errstate(over="ignore"):  # what fp32 cannot hold is infinite there
        floats = np.array([temperature, row.top_p, row.min_p, row.presence, row.frequency], dtype=np.float32)
    return [_signed(row.seed), row.purpose, row.top_k, int(row.temperature <= 0), *floats.view(np.int32).tolist()]


def _signed(seed: int) -> int:
    """The same 64 bits as a signed number."""
    seed &= MASK
    return seed - (1 << 64) if seed >> 63 else seed
