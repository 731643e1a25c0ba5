"""The processed target distribution over ordered candidates, and the draw from it: plain fp32 in rank order."""

from __future__ import annotations

import numpy as np

TINY = float(np.finfo(np.float32).tiny)  # the smallest temperature fp32 divides by


def support(logits: np.ndarray, temperature: float, top_p: float, min_p: float) -> np.ndarray:
    """Unnormalised weights of the kept candidates, zero for the others (speculation.md §3.1, steps 5-6).

    logits: [K] fp32 in rank order, already cut to top-k -> [K] fp32. ``temperature`` > 0. At least one is kept.
    """
    logits = logits.astype(np.float32)
    # the difference first: a tiny temperature then gives zeros beside the best, not infinities; 0 * inf cannot occur
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits[0]) / np.float32(max(temperature, TINY)))
    total = np.cumsum(weights, dtype=np.float32)[-1]
    kept = len(weights)
    if min_p > 0:
        below = np.nonzero(weights < np.float32(min_p) * weights[0])[0]
        if below.size:
            kept = min(kept, max(int(below[0]), 1))
    if top_p < 1:
        reached = np.nonzero(np.cumsum(weights, dtype=np.float32) >= np.float32(top_p) * total)[0]
        if reached.size:
            kept = min(kept, int(reached[0]) + 1)
    weights[kept:] = 0
    return weights


def pick(weights: np.ndarray, u: float) -> int:
    """The first rank whose running weight exceeds ``u`` of the mass; the last kept one as a fallback."""
    running = np.cumsum(weights, dtype=np.float32)
    target = np.float32(u) * running[-1]
    beyond = np.nonzero(target < running)[0]
    return int(beyond[0]) if beyond.size else int(np.nonzero(weights)[0][-1])
