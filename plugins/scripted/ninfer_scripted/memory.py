"""What the model keeps of the tokens it consumed, and whether it finds it again.

A KV row holds 64 bits, one an element, as +1 and -1, twice over, so that any storage carries them: the key the token
and its position, the value the hash of all tokens up to it. The state slot holds that hash and the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer_core.api.nn import PAGE_TOKENS, Cache, Step

Words = NDArray[np.uint64]
SEED = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
WINDOW = 2 * PAGE_TOKENS
GATHER_TOKENS = 4096


def mixed(hash_: int, token: int) -> int:
    """The hash of one token more: splitmix64 over both."""
    x = (hash_ ^ ((token + 1) * 0xD1B54A32D192ED03)) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def mixed_rows(hashes: Words, tokens: Words) -> Words:
    """``mixed`` of many pairs."""
    with np.errstate(over="ignore"):
        x = hashes ^ ((tokens + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: Words = x ^ (x >> np.uint64(31))
    return out


def to_rows(words: Words) -> Tensor:
    """[n] words -> [n, 1, 128] fp32 of +1 and -1."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    signs = np.tile(bits.astype(np.float32) * 2 - 1, 2)
    return torch.from_numpy(signs).unsqueeze(1)


def to_words(rows: Tensor) -> Words:
    """The words of [n, 1, 128] stored rows; both copies of a bit vote."""
    signs = rows.squeeze(1).float().cpu().numpy()
    bits = (signs[:, :64] + signs[:, 64:]) > 0
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").reshape(-1).astype(np.uint64)


def key_words(tokens: Sequence[int], first: int) -> Words:
    positions = np.arange(first, first + len(tokens), dtype=np.uint64)
    return np.asarray(tokens, dtype=np.uint64) | (positions << np.uint64(32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Consecutive rows as they were read back."""

    first: int
    tokens: Words
    positions: Words
    hashes: Words

    def holds_together(self, before: int | None) -> bool:
        """Each row is at its position and continues the one before it; ``before`` is the hash in front of the first."""
        expected = np.arange(self.first, self.first + len(self.tokens), dtype=np.uint64)
        if not np.array_equal(self.positions, expected):
            return False
        chained = bool(np.array_equal(mixed_rows(self.hashes[:-1], self.tokens[1:]), self.hashes[1:]))
        return chained and (before is None or mixed(before, int(self.tokens[0])) == int(self.hashes[0]))


def read(cache: Cache, step: Step, row: int, first: int, end: int) -> Stored:
    """Rows [first, end) of one sequence."""
    keys, values = [], []
    for at in range(first, end, GATHER_TOKENS):
        k_TGD, v_TGD = cache.gather(0, step, row, at, min(at + GATHER_TOKENS, end))
        keys.append(to_words(k_TGD))
        values.append(to_words(v_TGD))
    key = np.concatenate(keys)
    return Stored(
        first=first,
        tokens=key & np.uint64(0xFFFFFFFF),
        positions=key >> np.uint64(32),
        hashes=np.concatenate(values),
    )


def history(cache: Cache, step: Step, row: int) -> list[int] | None:
    """All tokens in front of a row's step; None when the stored rows do not continue each other."""
    frontier = step.frontiers[row]
    if not frontier:
        return []
    stored = read(cache, step, row, 0, frontier)
    return [int(token) for token in stored.tokens] if stored.holds_together(SEED) else None


def fault(cache: Cache, step: Step, row: int, state: tuple[int, int]) -> str | None:
    """What of a row's memory is not as it was left, found in constant time: "page", "state" or "position".

    Looked at are the state slot, the newest two pages' worth of rows and one older page, another one each time, with
    the row in front of it; ``history`` looks at all of them.
    """
    first, end, frontier = step.starts[row], step.starts[row + 1], step.frontiers[row]
    positions = step.positions[first:end].tolist()
    if positions != list(range(frontier, frontier + end - first)):
        return "position"
    if not frontier:
        return None
    recent = read(cache, step, row, max(frontier - WINDOW, 0), frontier)
    if not recent.holds_together(SEED if recent.first == 0 else None):
        return "page"
    older = recent.first // PAGE_TOKENS
    if older:
        page = frontier % older
        begin = page * PAGE_TOKENS
        one = read(cache, step, row, max(begin - 1, 0), begin + PAGE_TOKENS + 1)
        if not one.holds_together(SEED if one.first == 0 else None):
            return "page"
    return None if state == (int(recent.hashes[-1]), frontier) else "state"
