"""Steps from lists, and a bench that feeds a model without an engine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ninfer_core.api import KVDtype, KVGeometry, StatePart
from ninfer_core.api.nn import PAGE_TOKENS, Cache, Model, Step, StepOutput

from .cache import SimpleCache

Wanted = Literal["all", "last", "none"]
GUARD = 7  # what the slot that belongs to nobody is filled with


def make_step(
    tokens: Sequence[Sequence[int]],
    *,
    frontiers: Sequence[int],
    pages: Sequence[Sequence[int]],
    slots: Sequence[int] | None = None,
    wanted: Wanted = "all",
    provisional: bool = False,
    prompt_tokens: Sequence[int] = (),
) -> Step:
    """A step that feeds ``tokens[b]`` to row ``b`` from ``frontiers[b]`` on, its history in ``pages[b]``."""
    starts = [0]
    ids: list[int] = []
    positions: list[int] = []
    cache_slots: list[int] = []
    logit_index: list[int] = []
    for fed, frontier, own in zip(tokens, frontiers, pages, strict=True):
        first = len(ids)
        ids.extend(fed)
        starts.append(len(ids))
        for position in range(frontier, frontier + len(fed)):
            positions.append(position)
            cache_slots.append(own[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
        logit_index.extend({"all": range(first, len(ids)), "last": [len(ids) - 1], "none": []}[wanted])
    width = max(len(own) for own in pages)
    return Step(
        token_ids=long(ids),
        positions=long(positions),
        starts=tuple(starts),
        frontiers=tuple(frontiers),
        page_table=torch.tensor([[*own, *[0] * (width - len(own))] for own in pages], dtype=torch.int64),
        cache_slots=long(cache_slots),
        state_slots=tuple(slots if slots is not None else range(len(tokens))),
        logit_index=long(logit_index),
        provisional=provisional,
        prompt_tokens=tuple(prompt_tokens),
    )


def long(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


class Rig:
    """Sequences of one model, each with scattered pages and a state slot of its own.

    Row ``r`` keeps its frontier between calls of ``feed``. State slot 0 belongs to nobody and must never change;
    ``check`` says whether it did. ``prompts[r]``: the tokens of row ``r``'s prompt, where a test cares.
    """

    def __init__(
        self,
        model: Model,
        geometry: KVGeometry,
        layout: Sequence[StatePart] = (),
        *,
        rows: int = 4,
        max_tokens: int = 512,
        dtype: KVDtype | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.model = model
        each = -(-max_tokens // PAGE_TOKENS)
        pages = list(range(1, rows * each + 1))
        random.Random(rows).shuffle(pages)
        self.pages = [pages[r * each : (r + 1) * each] for r in range(rows)]
        self.cache: Cache = cache or SimpleCache(geometry, rows * each + 1, dtype=dtype)
        self.state = {
            part.name: torch.zeros(rows + 1, *part.shape, dtype=getattr(torch, part.dtype)) for part in layout
        }
        for part in self.state.values():
            part[0] = GUARD
        self.slots = [rows - r for r in range(rows)]
        self.frontiers = [0] * rows
        self.prompts: dict[int, int] = {}
        self._pending: tuple[Step, StepOutput, list[int]] | None = None

    def feed(
        self, fed: Mapping[int, Sequence[int]], *, provisional: bool = False, wanted: Wanted = "all"
    ) -> dict[int, Tensor]:
        """One step over the rows of ``fed``, in its order: row -> [tokens wanted, V] logits. A provisional step leaves
        the frontiers to ``fold``."""
        rows = list(fed)
        step = make_step(
            [fed[r] for r in rows],
            frontiers=[self.frontiers[r] for r in rows],
            pages=[self.pages[r] for r in rows],
            slots=[self.slots[r] for r in rows],
            wanted=wanted,
            provisional=provisional,
            prompt_tokens=[self.prompts[r] for r in rows] if self.prompts else (),
        )
        out = self.model.forward(step, self.cache, self.state)
        if not provisional:
            for r in rows:
                self.frontiers[r] += len(fed[r])
        else:
            self._pending = (step, out, rows)
        counts = [{"all": len(fed[r]), "last": 1, "none": 0}[wanted] for r in rows]
        return dict(zip(rows, torch.split(out.logits, counts), strict=True))

    def fold(self, kept: Mapping[int, int]) -> None:
        """Keep the first ``kept[r]`` tokens of each row of the last provisional step (0 where it names none)."""
        assert self._pending is not None, "fold follows a provisional step"
        step, out, rows = self._pending
        self._pending = None
        self.model.fold(step, out.records, [kept.get(r, 0) for r in rows], self.state)
        for r in rows:
            self.frontiers[r] += kept.get(r, 0)

    def image(self, row: int) -> dict[str, Tensor]:
        """A copy of the row's recurrent state."""
        return {name: part[self.slots[row]].clone() for name, part in self.state.items()}

    def check(self) -> None:
        for name, part in self.state.items():
            assert (part[0] == GUARD).all(), f"state part {name!r}: a slot that belongs to no row was written"
