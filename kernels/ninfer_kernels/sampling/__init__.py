"""Sampling in the 20-candidate domain: counter RNG, ordered candidates, the draw (speculation.md §3)."""

from .candidates import DOMAIN, Candidates, best, top_candidates
from .reference import TINY, pick, support
from .rng import DECODE, PREFILL, uniform

__all__ = ["DECODE", "DOMAIN", "PREFILL", "TINY", "Candidates", "best", "pick", "support", "top_candidates", "uniform"]
