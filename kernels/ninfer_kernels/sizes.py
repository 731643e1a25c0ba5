"""Whole numbers of a launch. Triton's own functions of these names serve its compiler too, and take 3 us a call on the
host, where a layer makes twenty of them."""

from __future__ import annotations


def cdiv(size: int, step: int) -> int:
    """How many steps cover ``size``."""
    return -(-size // step)


def next_power_of_2(size: int) -> int:
    """The least power of two that is not below ``size``; 1 for 0."""
    return 1 << max(size - 1, 0).bit_length()
