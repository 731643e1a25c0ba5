"""Who wrote which part of a rendered prompt.

A control token's spelling inside a client's string is text. Before a template sees such a string it gets *marks*, a
character that occurs nowhere in the input: one in front, and one inside every spelling. What the template writes itself
stays whole. After rendering, whole spellings are control tokens, and the marks are taken out of the text between them.
A mark survives whatever a template does to a string, so losing track of one can only turn a control token into text.

The mark in front also keeps strings put side by side from forming a spelling; where a string ends with the start of
one, a mark stands in that too.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

from ninfer_core.errors import ApiError

_NONCHARACTERS = range(0xFDD0, 0xFDF0)


def free_characters(texts: Sequence[str], count: int) -> list[str]:
    """Characters that occur in none of ``texts``: noncharacters if they can be, else private-use ones.
    ``invalid_prompt`` for texts that hold nearly all of both.
    """
    unused = (char for char in map(chr, _NONCHARACTERS) if not any(char in text for text in texts))
    free = list(islice(unused, count))
    if len(free) < count:
        used = set().union(*texts)
        free = [char for char in map(chr, range(0xF0000, 0x10FFFE)) if char not in used][:count]
    if len(free) < count:
        text = "The prompt holds every private-use character of Unicode; leave some of them out."
        raise ApiError("invalid_prompt", text, param="messages")
    return free


class Spellings:
    """The spellings that only a template may write. Built once per model."""

    def __init__(self, spellings: Iterable[str]) -> None:
        words = sorted(set(spellings))
        self.pattern = re.compile(_alternation(words)) if words else None  # leftmost, longest
        self.longest = max(map(len, words), default=0)
        self._starts = {word[:size] for word in words for size in range(1, len(word))}
        heads = "".join(sorted({word[0] for word in words}))
        self._heads = re.compile(f"[{re.escape(heads)}]") if heads else None

    def places(self, text: str) -> set[int]:
        """Where marks go, as positions between characters: in front, inside every spelling (overlapping ones too), and
        at the end."""
        places = self.edges(text)
        if self.pattern is not None:
            found = self.pattern.search(text)
            while found:
                places.add(found.start() + 1)
                found = self.pattern.search(text, found.start() + 1)
        return places

    def occur_in(self, text: str) -> bool:
        return self.pattern is not None and self.pattern.search(text) is not None

    def edges(self, text: str) -> set[int]:
        """In front, and where the text ends with the start of a spelling."""
        if not text:
            return set()
        places = {0}
        if self._heads is not None:
            for found in self._heads.finditer(text, max(len(text) - self.longest + 1, 0)):
                if text[found.start() :] in self._starts:
                    places.add(found.start() + 1)
        return places

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text as runs, each with whether it is a control token."""
        at = 0
        for found in self.pattern.finditer(text) if self.pattern is not None else ():
            if found.start() > at:
                yield text[at : found.start()], False
            yield found[0], True
            at = found.end()
        if at < len(text):
            yield text[at:], False


def _alternation(words: list[str]) -> str:
    """A regular expression for the longest of sorted ``words``, shared beginnings written once."""
    if len(words) == 1:
        return re.escape(words[0])
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    optional = "" in heads
    heads.pop("", None)
    branches = []
    for head, tails in heads.items():
        while tails[0] and all(tail[:1] == tails[0][0] for tail in tails):
            head += tails[0][0]
            tails = [tail[1:] for tail in tails]
        branches.append(re.escape(head) + (_alternation(tails) if tails != [""] else ""))
    joined = branches[0] if len(branches) == 1 and not optional else f"(?:{'|'.join(branches)})"
    return joined + "?" * optional


class Marks:
    """The mark of one rendering, and the spellings it breaks."""

    def __init__(self, spellings: Spellings, mark: str) -> None:
        self.spellings, self.mark = spellings, mark

    def text(self, plain: str) -> str:
        """A client's string."""
        places = self.spellings.places(plain)
        if len(places) == 1:
            return self.made(self.mark + plain, plain, [0])  # the one in front
        return self.build(plain, places)

    def cut(self, plain: str, places: Iterable[int]) -> str:
        """A part of a marked string, with its new edges."""
        return self.build(plain, set(places) | self.spellings.edges(plain))

    def read(self, marked: str) -> str:
        """A string that went through code which does not know marks."""
        return marked if isinstance(marked, Marked) or self.mark not in marked else self.found(marked)

    def found(self, marked: str) -> Marked:
        """A string that is known to hold marks, with those that are in it."""
        pieces = marked.split(self.mark)
        places, at = [], 0
        for piece in pieces[:-1]:
            at += len(piece)
            places.append(at)
        return self.marked("".join(pieces), sorted(set(places)))

    def build(self, plain: str, places: Iterable[int]) -> str:
        ordered = sorted(set(places))
        return self.marked(plain, ordered) if ordered else plain

    def marked(self, plain: str, ordered: list[int]) -> Marked:
        """``plain`` with a mark at each of these places, one at least."""
        bounds = [0, *ordered, len(plain)]
        return self.made(self.mark.join([plain[a:b] for a, b in pairwise(bounds)]), plain, ordered)

    def made(self, raw: str, plain: str, ordered: list[int]) -> Marked:
        """A marked string whose parts are known to belong together."""
        marked = str.__new__(Marked, raw)
        marked._plain, marked._places, marked._marks = plain, ordered, self
        return marked

    def joined(self, left: Marked, right: Marked) -> str:
        """One behind the other. Templates build long texts piece by piece: what is there is not looked at again."""
        raw, end = str.__add__(left, right), len(left._plain)
        places = [*left._places, *(end + place for place in right._places)]
        if left._places[-1] == end and right._places[0] == 0:
            # one mark is enough between them
            places.pop(len(left._places))
            raw = str.__add__(left, str.__getitem__(right, slice(1, None)))
        return self.made(raw, left._plain + right._plain, places)

    def plain(self, text: str) -> str:
        """A string without marks, as the model reads it."""
        return str.replace(text, self.mark, "")


def plain(value: Any) -> Any:
    """A value as a template compares it: without marks."""
    return value._plain if isinstance(value, Marked) else value


class Marked(str):
    """A string with marks in it. Templates see the text without them: ``'</think>' in content``, ``split``, ``strip``,
    slices and comparisons work as on the plain string, and what they return keeps its marks."""

    __slots__ = ("_marks", "_places", "_plain")
    _plain: str
    _places: list[int]
    _marks: Marks

    @property
    def mark(self) -> str:
        return self._marks.mark

    def __str__(self) -> str:
        return self

    def __len__(self) -> int:
        return len(self._plain)

    def __hash__(self) -> int:
        return hash(self._plain)

    def __eq__(self, other: object) -> bool:
        return bool(self._plain == plain(other))

    def __ne__(self, other: object) -> bool:
        return bool(self._plain != plain(other))

    def __lt__(self, other: str) -> bool:
        return self._plain < str(plain(other))

    def __gt__(self, other: str) -> bool:
        return self._plain > str(plain(other))

    def __contains__(self, part: object) -> bool:
        return plain(part) in self._plain

    def __iter__(self) -> Iterator[str]:
        return (self._cut(i, i + 1) for i in range(len(self._plain)))

    def __getitem__(self, key: Any) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self._plain))
            return self._cut(start, stop) if step == 1 else self._marks.text(self._plain[key])
        at = range(len(self._plain))[key]
        return self._cut(at, at + 1)

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        if not isinstance(other, Marked):
            if self._marks.mark not in other:
                return self._marks.made(str.__add__(self, other), self._plain + other, self._places)
            other = self._marks.found(other)
        return self._marks.joined(self, other)

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        if self._marks.mark in other:
            return self._marks.joined(self._marks.found(other), self)
        raw = str.__add__(other, self)
        return self._marks.made(raw, other + self._plain, [place + len(other) for place in self._places])

    def strip(self, chars: str | None = None) -> str:
        chars = plain(chars)
        return self._cut(len(self._plain) - len(self._plain.lstrip(chars)), len(self._plain.rstrip(chars)))

    def lstrip(self, chars: str | None = None) -> str:
        return self._cut(len(self._plain) - len(self._plain.lstrip(plain(chars))), len(self._plain))

    def rstrip(self, chars: str | None = None) -> str:
        return self._cut(0, len(self._plain.rstrip(plain(chars))))

    def removeprefix(self, prefix: str) -> str:
        return self._cut(len(self._plain) - len(self._plain.removeprefix(plain(prefix))), len(self._plain))

    def removesuffix(self, suffix: str) -> str:
        return self._cut(0, len(self._plain.removesuffix(plain(suffix))))

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._parts(self._plain.split(plain(sep), maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._parts(self._plain.rsplit(plain(sep), maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._parts(self._plain.splitlines(keepends), 0)

    def partition(self, sep: str) -> tuple[str, str, str]:
        return self._halves(self._plain.find(plain(sep)), sep, (self, "", ""))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        return self._halves(self._plain.rfind(plain(sep)), sep, ("", "", self))

    def replace(self, old: str, new: str, count: Any = -1) -> str:
        if not old:
            return self._marks.text(self._plain.replace(plain(old), plain(new), count))
        return self._marks.read(str.join(new, self.split(old, count)))

    def join(self, parts: Iterable[str]) -> str:
        return self._marks.read(str.join(self, parts))

    def _cut(self, start: int, stop: int) -> str:
        stop = max(stop, start)
        if start == 0 and stop == len(self._plain):
            return self
        inside = self._places[bisect_right(self._places, start) : bisect_left(self._places, stop)]
        return self._marks.cut(self._plain[start:stop], (place - start for place in inside))

    def _parts(self, parts: list[str], step: int) -> list[str]:
        cuts, at = [], 0
        for part in parts:
            at = self._plain.index(part, at)
            cuts.append(self._cut(at, at + len(part)))
            at += len(part) + step
        return cuts

    def _halves(self, at: int, sep: str, missing: tuple[str, str, str]) -> tuple[str, str, str]:
        if at < 0:
            return missing
        return self._cut(0, at), sep, self._cut(at + len(sep), len(self._plain))


def _ask(name: str) -> Any:
    """A method that only looks at the text."""
    method = getattr(str, name)

    def ask(self: Marked, *args: Any) -> Any:
        return method(self._plain, *map(plain, args))

    ask.__name__ = name
    return ask


def _rewrite(name: str) -> Any:
    """A method that writes the text anew: all of it counts as the client's."""
    method = getattr(str, name)

    def rewrite(self: Marked, *args: Any) -> str:
        return self._marks.text(method(self._plain, *map(plain, args)))

    rewrite.__name__ = name
    return rewrite


_ASKING = """startswith endswith find rfind index rindex count isalnum isalpha isascii isdecimal isdigit isidentifier
islower isnumeric isprintable isspace istitle isupper"""
_REWRITING = "lower upper title capitalize swapcase casefold center ljust rjust zfill expandtabs translate"
for _name in _ASKING.split():
    setattr(Marked, _name, _ask(_name))
for _name in _REWRITING.split():
    setattr(Marked, _name, _rewrite(_name))
