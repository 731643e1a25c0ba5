"""The counter RNG: a draw is a pure function of (seed, position filled, purpose), so batching, chunking, speculation
and resuming cannot change what a seed gives (speculation.md §3.2)."""

MASK = (1 << 64) - 1
PREFILL = 0  # the first output; its position is the prompt's length
DECODE = 1  # every later output, coupled draws included


def mix(x: int) -> int:
    """The 64-bit finalizer of splitmix64, in wrapping unsigned arithmetic."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int, purpose: int) -> float:
    """A draw in [0, 1) with 24 bits, exact in fp32. ``seed``: any integer, taken modulo 2^64."""
    key = mix((seed & MASK) ^ ((position & 0xFFFFFFFF) * 0xD1B54A32D192ED03 & MASK))
    key = mix(key ^ ((purpose & 0xFFFFFFFF) << 21))
    return (key >> 40) * 2.0**-24
