"""Sampling in the 20-candidate domain: counter RNG, ordered candidates, the draw (speculation.md §3)."""

from .candidates import DOMAIN, Candidates, best, top_candidates
from .draws import DRAWN, OUT, Draws, draws_in
from .reference import TINY, pick, support
from .rng import DECODE, PREFILL, uniform
from .settings import NUMBERS, Settings, packed

__all__ = [
    "DECODE",
    "DOMAIN",
    "DRAWN",
    "NUMBERS",
    "OUT",
    "PREFILL",
    "TINY",
    "Candidates",
    "Draws",
    "Settings",
    "best",
    "draws_in",
    "packed",
    "pick",
    "support",
    "top_candidates",
    "uniform",
]
