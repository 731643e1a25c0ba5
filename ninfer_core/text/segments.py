"""Encoded stretches of prompts, remembered.

A tokenizer finds its added tokens first and encodes what stands between two of them by itself. So a prompt can be cut
at them, and of a conversation that comes back with one turn more only that turn is encoded anew.
"""

from __future__ import annotations

import re
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .provenance import Spellings
from .tokenizer import HFTokenizer

LIMIT_BYTES = 32 << 20  # about 500 conversations of 8K tokens
ENTRY_BYTES = 300  # of one entry beside its text and ids
LARGEST_SHARE = 4  # an entry above this share of the limit would push out too many others


@dataclass(frozen=True, slots=True)
class Stretch:
    """A key: the same text has other ids where control tokens are read, and at the beginning of a prompt."""

    text: str
    control: bool
    first: bool


class SegmentCache:
    """Ids of stretches, the least recently used forgotten first. Any thread may use it.

    ``bytes_held`` never exceeds ``limit_bytes``; it counts texts, ids and an estimate of what keeps them.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_held = 0
        self._entries: OrderedDict[Stretch, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, stretches: Sequence[Stretch]) -> list[array[int] | None]:
        """The ids of each, None where they are not known."""
        found: list[array[int] | None] = []
        with self._lock:
            for stretch in stretches:
                ids = self._entries.get(stretch)
                if ids is not None:
                    self._entries.move_to_end(stretch)
                found.append(ids)
        return found

    def put(self, stretch: Stretch, ids: array[int]) -> None:
        size = _cost(stretch, ids)
        if size * LARGEST_SHARE > self.limit_bytes:
            return
        with self._lock:
            if stretch in self._entries:
                return  # another thread was faster
            self._entries[stretch] = ids
            self.bytes_held += size
            while self.bytes_held > self.limit_bytes:
                self.bytes_held -= _cost(*self._entries.popitem(last=False))


class SegmentedTokenizer:
    """Encodes exactly as its tokenizer does, faster where it has seen a stretch before. Any thread may use it."""

    def __init__(self, tokenizer: HFTokenizer, cache: SegmentCache | None = None) -> None:
        self.cache = SegmentCache() if cache is None else cache
        self._tokenizer = tokenizer
        self._control = tokenizer.control_tokens
        # with flags, what a token takes in or whether it is found at all depends on its neighbours
        self._cuts: re.Pattern[str] | None = None
        if not tokenizer.has_flagged_tokens:
            # white space among the added tokens is no place to cut, but decides where the others are found
            self._cuts = Spellings(tokenizer.added_tokens).pattern

    def encode(self, text: str, *, first: bool = True) -> list[int]:
        """``HFTokenizer.encode``."""
        return self._ids([Stretch(text, False, first)] if text else [])

    def encode_with_control(self, text: str, *, first: bool = True) -> list[int]:
        """``HFTokenizer.encode_with_control``."""
        return self._ids(list(self._cut(text, first)))

    def _cut(self, text: str, first: bool) -> Iterator[Stretch | int]:
        """The control tokens of a text, and the stretches between them; none is empty."""
        begin = 0
        for found in self._cuts.finditer(text) if self._cuts is not None else ():
            token = self._control.get(found[0])
            if token is None:
                continue
            if found.start() > begin:
                yield Stretch(text[begin : found.start()], True, first and begin == 0)
            yield token
            begin = found.end()
        if begin < len(text):
            yield Stretch(text[begin:], True, first and begin == 0)

    def _ids(self, parts: Sequence[Stretch | int]) -> list[int]:
        wanted = list(dict.fromkeys(part for part in parts if isinstance(part, Stretch)))
        known = dict(zip(wanted, self.cache.get(wanted), strict=True))
        self._learn([stretch for stretch, ids in known.items() if ids is None], known)
        out: list[int] = []
        for part in parts:
            if isinstance(part, int):
                out.append(part)
            else:
                out.extend(known[part] or ())
        return out

    def _learn(self, missing: Sequence[Stretch], known: dict[Stretch, array[int] | None]) -> None:
        """Encode what is missing, alike stretches together: the library spreads them over its threads."""
        for control, first in dict.fromkeys((stretch.control, stretch.first) for stretch in missing):
            alike = [stretch for stretch in missing if (stretch.control, stretch.first) == (control, first)]
            lists = self._tokenizer.encode_many([stretch.text for stretch in alike], control=control, first=first)
            for stretch, ids in zip(alike, lists, strict=True):
                known[stretch] = packed = array("I", ids)
                self.cache.put(stretch, packed)


def _cost(stretch: Stretch, ids: array[int]) -> int:
    return sys.getsizeof(stretch.text) + ids.itemsize * len(ids) + ENTRY_BYTES
