"""A decode round that the device runs while the host still deals with the one before it.

The tokens of a round are known when they have come down; its next one needs nothing else. So it is sent off at once,
over all rows but those that end, and the device does not wait for the host to publish text, admit requests and count.
What comes of it is dropped for a row that did not go on as foreseen: a draw depends on seed and position alone, so the
row's own next round draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.api import CopySource, Draft
from ninfer_core.api.nn import Step
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.recorded import Recorded, RoundRow
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.sampling.sampler import FAILED, Drawn


@dataclass(kw_only=True, slots=True)
class Row:
    """One lane's outcome of a unit."""

    lane: Lane
    tokens: list[int]  # what may be committed; a trailing FAILED fails the request
    drawn: list[Drawn] = field(default_factory=list)  # as sampled, one per column; ``tokens`` is a prefix
    draft: Draft | None = None
    source: CopySource | None = None
    handle: object = None


@dataclass(kw_only=True, slots=True)
class Pending:
    """A unit that ran: tokens and state, not yet real. ``advanced``: rows whose frontier moves by what was processed,
    the state having moved already (prefill, control); else it moves by what is kept."""

    step: Step
    rows: list[Row]
    records: Any = None
    advanced: list[int] | None = None
    recorded: Recorded | None = None
    places: list[int] | None = None  # of the rows in what was recorded; None: all of them, in order
    folded: list[int] | None = None  # what the state has already kept of each row

    def kept_in_place(self, kept: Sequence[int]) -> Sequence[int]:
        """``kept`` by the rows of what was recorded; nothing of those that were dropped."""
        if self.places is None or self.recorded is None:
            return kept
        out = [0] * self.recorded.shape.rows
        for place, count in zip(self.places, kept, strict=True):
            out[place] = count
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """A round of one column a row, under way."""

    recorded: Recorded
    lanes: list[Lane]
    filled: list[RoundRow]

    def landed(self, lanes: Sequence[Lane]) -> Pending | None:
        """What it drew for those of ``lanes`` that went on as foreseen; None if none did."""
        wanted = {lane.index: lane for lane in lanes}
        drawn = self.recorded.drawn(self.filled)
        rows, places = [], []
        for place, (lane, fed) in enumerate(zip(self.lanes, self.filled, strict=True)):
            if wanted.get(lane.index) is lane and _is_as_foreseen(lane, fed):
                rows.append(Row(lane=lane, tokens=[drawn[place][0].token], drawn=drawn[place]))
                places.append(place)
        return Pending(step=self.recorded.step, rows=rows, recorded=self.recorded, places=places) if rows else None


def _is_as_foreseen(lane: Lane, fed: RoundRow) -> bool:
    return (
        lane.frontier == fed.frontier == len(lane.ledger) - 1
        and lane.ledger[-1] == fed.tokens[0]
        and lane.params is fed.params
    )


def goes_on(lane: Lane, token: int) -> bool:
    """Whether a lane that has drawn ``token`` will want another one, as far as can be foreseen."""
    return (
        token != FAILED
        and token not in lane.request.stop_ids
        and lane.remaining > 1  # this token, and one more
        and lane.frontier + 2 <= lane.space.entitlement * PAGE_TOKENS
    )
