"""Which parameters are stored as one parent, their rows one after the other (``spec/artifact.md`` §16).

A parent is read, and multiplied, in one piece. Only parameters of one block are put together, so that no parent holds
what is loaded at different times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

BLOCK = re.compile(r"(?P<prefix>(?:\w+/)?layers?/(?:\d+/)?)(?P<rest>.+)")
EXPERT = re.compile(r"moe/experts/(\d+)/(gate|up|down)")

TEXT_GROUPS = (
    ("attention/query", "attention/key", "attention/gate", "attention/value"),
    ("attention/query", "attention/key"),
    ("attention/gate", "attention/value"),
    ("gdn/query", "gdn/key", "gdn/value", "gdn/z"),
    ("gdn/query", "gdn/key"),
    ("gdn/value", "gdn/z"),
    ("gdn/a_projection", "gdn/b_projection"),
    ("mlp/gate", "mlp/up"),
    ("moe/router", "moe/shared_score"),
    ("moe/shared/gate", "moe/shared/up"),
    ("indexer/query", "indexer/key"),
    ("ple/key", "ple/value"),
)
JOINT_GROUPS = (
    ("attention/query", "attention/key", "attention/value"),
    ("attention/query_bias", "attention/key_bias", "attention/value_bias"),
    ("mlp/gate", "mlp/up"),
)
"""Of vision towers and draft models."""

JOINT = ("vision/", "dflash/", "dflash2/")


def candidates(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Groups of ``names`` in the order in which they are tried; a name may be in several."""
    for prefix, inner in blocks(names).items():
        present = set(inner)
        for group in JOINT_GROUPS if prefix.startswith(JOINT) else TEXT_GROUPS:
            if present.issuperset(group):
                yield tuple(prefix + name for name in group)
        yield from (tuple(prefix + name for name in group) for group in expert_groups(inner))


def blocks(names: Iterable[str]) -> dict[str, list[str]]:
    """The names within each block, by its prefix."""
    found: dict[str, list[str]] = {}
    for name in names:
        match = BLOCK.fullmatch(name)
        if match is not None:
            found.setdefault(match["prefix"], []).append(match["rest"])
    return found


def expert_groups(inner: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Gate and up of every expert in turn, then every down; so one expert is one run of rows."""
    experts = sorted({int(match[1]) for name in inner if (match := EXPERT.fullmatch(name))})
    if experts:
        yield tuple(f"moe/experts/{e}/{half}" for e in experts for half in ("gate", "up"))
        yield tuple(f"moe/experts/{e}/down" for e in experts)
