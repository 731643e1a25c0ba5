"""A ring of tokens in which earlier occurrences of a token sequence are found through hashes of 16, 8 and 4 tokens.

Positions count every token ever written, boundaries included; a window is named by the position after its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RING = 1 << 20  # tokens that can still be found
BUCKETS = 1 << 19
ENTRIES = 4  # windows a bucket holds, the newest first
WIDTHS = (16, 8, 4)
BOUNDARY = -1

_SEED, _FACTOR = 1469598103934665603, 1099511628211
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MASK = (1 << 64) - 1
_FEW = 12  # tokens up to which a loop is quicker than arrays


def hash_tokens(tokens: Sequence[int]) -> int:
    """The 64-bit hash of one window. Source: spec/speculation.md §9 (FNV-1a over tokens, finished like splitmix64)."""
    value = _SEED ^ len(tokens)
    for token in tokens:
        value = ((value ^ (token & 0xFFFFFFFF)) * _FACTOR) & _MASK
    for shift, factor in _MIX:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> 31)


def hash_windows(tokens: NDArray[np.int32], width: int) -> NDArray[np.uint64]:
    """``hash_tokens`` of every window of this width, by its first token: [len - width + 1]."""
    words = tokens.astype(np.uint32).astype(np.uint64)
    count = len(tokens) - width + 1
    value = np.full(count, _SEED ^ width, dtype=np.uint64)
    for i in range(width):
        value ^= words[i : i + count]
        value *= np.uint64(_FACTOR)
    for shift, factor in _MIX:
        value ^= value >> np.uint64(shift)
        value *= np.uint64(factor)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens that followed the last ``length`` tokens of a history at an earlier place."""

    length: int
    following: list[int]


class NgramIndex:
    """Tokens with boundaries; memory grows with what is written, to about 20 MiB."""

    def __init__(self) -> None:
        self._ring: NDArray[np.int32] = np.empty(RING, dtype=np.int32)
        # an entry is end * 32 + width, 0 where there is none; zeros cost no memory until they are written
        self._table: NDArray[np.int64] = np.zeros((BUCKETS, ENTRIES), dtype=np.int64)
        self._written = 0

    def append(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Write tokens (BOUNDARY where a copy may not cross) and index every window that ends in them."""
        if len(tokens) <= _FEW:
            self._append_few(list(tokens))
        else:
            self._append_many(np.asarray(tokens, dtype=np.int32)[-RING:])

    def find(self, history: Sequence[int], min_match: int, wanted: int) -> Match | None:
        """The longest earlier occurrence of the end of ``history``, at least ``min_match`` long, with up to ``wanted``
        tokens that follow it in its segment. Among equally long ones the one with more tokens following; then the one
        found through the wider window; then the newest. Source: spec/speculation.md §9, Lookup."""
        best: Match | None = None
        for width in WIDTHS:
            if len(history) < width:
                continue
            bucket = hash_tokens(history[-width:]) % BUCKETS
            for entry in self._table[bucket].tolist():
                end, entry_width = entry >> 5, entry & 31
                if entry_width != width or end >= self._written or end - width < self._oldest:
                    continue
                length = self._match_length(end, history)
                if length < max(width, min_match) or (best is not None and length < best.length):
                    continue
                following = self._following(end, wanted)
                if following and (best is None or length > best.length or len(following) > len(best.following)):
                    best = Match(length, following)
        return best

    @property
    def _oldest(self) -> int:
        """The first position still in the ring."""
        return max(0, self._written - RING)

    def _array(self, start: int, end: int) -> NDArray[np.int32]:
        """Tokens at positions [start, end)."""
        a, b = start % RING, end % RING
        if a < b or start == end:
            return self._ring[a:b]
        return np.concatenate((self._ring[a:], self._ring[:b]))

    def _match_length(self, end: int, history: Sequence[int]) -> int:
        """How many tokens before ``end`` equal the end of the history; a boundary equals nothing."""
        before = self._array(max(self._oldest, end - len(history)), end).tolist()
        if before == history:
            return len(before)
        length = 0
        for here, there in zip(reversed(before), reversed(history), strict=False):
            if here != there:
                break
            length += 1
        return length

    def _following(self, end: int, wanted: int) -> list[int]:
        tokens: list[int] = self._array(end, min(end + wanted, self._written)).tolist()
        return tokens[: tokens.index(BOUNDARY)] if BOUNDARY in tokens else tokens

    def _append_few(self, tokens: list[int]) -> None:
        first = self._written
        for i, token in enumerate(tokens):
            self._ring[(first + i) % RING] = token
        self._written = first + len(tokens)
        # windows that end in the new tokens begin up to 15 before them
        around = self._array(max(self._oldest, first - max(WIDTHS) + 1), self._written).tolist()
        for back in range(len(tokens) - 1, -1, -1):
            stop = len(around) - back
            segment = around[max(0, stop - max(WIDTHS)) : stop]
            if BOUNDARY in segment:
                segment = segment[len(segment) - segment[::-1].index(BOUNDARY) :]
            for width in WIDTHS:
                if len(segment) >= width:
                    bucket = hash_tokens(segment[-width:]) % BUCKETS
                    self._table[bucket] = ((self._written - back) * 32 + width, *self._table[bucket, :-1].tolist())

    def _append_many(self, tokens: NDArray[np.int32]) -> None:
        first = self._written
        self._ring[np.arange(first, first + len(tokens)) % RING] = tokens
        self._written = first + len(tokens)
        reach = min(max(WIDTHS) - 1, first, RING - len(tokens))
        start = first - reach
        around = self._array(start, self._written)
        places = np.arange(len(around))
        boundary = np.maximum.accumulate(np.where(around == BOUNDARY, places, -1))
        orders, buckets, entries = [], [], []
        for rank, width in enumerate(WIDTHS):
            if len(around) < width:
                continue
            # window i begins at place i and ends with place i + width - 1
            last = places[width - 1 :]
            valid = (last - boundary[width - 1 :] >= width) & (last >= reach)
            orders.append(last[valid] * len(WIDTHS) + rank)
            buckets.append((hash_windows(around, width)[valid] % np.uint64(BUCKETS)).astype(np.int64))
            entries.append((start + last[valid] + 1) * 32 + width)
        self._insert(np.concatenate(orders), np.concatenate(buckets), np.concatenate(entries))

    def _insert(self, orders: NDArray[np.int64], buckets: NDArray[np.int64], entries: NDArray[np.int64]) -> None:
        """Put entries at the front of their buckets, in ascending ``orders``; each bucket keeps the newest four."""
        if not len(entries):
            return
        by_bucket = np.lexsort((orders, buckets))
        buckets, entries = buckets[by_bucket], entries[by_bucket]
        lasts = np.flatnonzero(np.append(buckets[1:] != buckets[:-1], True))
        counts = np.diff(lasts, prepend=-1)
        column = np.arange(ENTRIES)
        new = entries[np.maximum(lasts[:, None] - column, 0)]
        touched = buckets[lasts]
        shifted = np.maximum(column - counts[:, None], 0)
        old = np.take_along_axis(self._table[touched], shifted, axis=1)
        self._table[touched] = np.where(column < counts[:, None], new, old)
