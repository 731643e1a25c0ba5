"""A decode round under way, and the one the device runs after it while the host still deals with the first.

A round of one column a row needs nothing of the round before it but the token drawn, which lies on the device already.
So it is sent off before that token has come down, over all rows but those that reach a limit, and the device never
waits for the host. What comes of it is dropped for a row that did not go on as foreseen: a draw depends on seed and
position alone, so the row's own next round draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_core.api import CopySource, Draft
from ninfer_core.api.nn import Step
from ninfer_core.engine.graphs import Sent
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.recorded import DRAWN, Recorded, RoundRow
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.sampling.sampler import Drawn
from ninfer_core.spec.verify import licensed


@dataclass(kw_only=True, slots=True)
class Row:
    """One lane's outcome of a unit."""

    lane: Lane
    tokens: list[int]  # what may be committed; a trailing FAILED fails the request
    drawn: list[Drawn] = field(default_factory=list)  # as sampled, one per column; ``tokens`` is a prefix
    draft: Draft | None = None
    source: CopySource | None = None
    handle: object = None

    def take(self, drawn: list[Drawn]) -> None:
        """What a decode round drew for it, by column."""
        tokens = [one.token for one in drawn]
        self.drawn = drawn
        self.tokens = licensed(tokens, self.draft.tokens) if self.draft else tokens[:1]


@dataclass(kw_only=True, slots=True)
class Pending:
    """A unit that ran: tokens and state, not yet real. ``advanced``: rows whose frontier moves by what was processed,
    the state having moved already (prefill, control); else it moves by what is kept."""

    step: Step
    rows: list[Row]
    records: Any = None
    advanced: list[int] | None = None
    recorded: Recorded | None = None
    places: Sequence[int] = ()  # of the rows in what was recorded
    folded: bool = False  # the state has already kept the one token fed of each row


def kept_in_place(recorded: Recorded, places: Sequence[int], kept: Sequence[int]) -> list[int]:
    """``kept`` by the rows of what was recorded; nothing of those that were dropped."""
    out = [0] * recorded.shape.rows
    for place, count in zip(places, kept, strict=True):
        out[place] = count
    return out


@dataclass(kw_only=True, slots=True)
class Flight:
    """A recorded round that was sent off."""

    sent: Sent
    rows: list[Row]
    places: list[int]  # of the rows in what was recorded
    fed: list[int]  # the first token of each row; DRAWN until the round before it has come down

    @classmethod
    def of(cls, sent: Sent, rows: list[Row]) -> Flight:
        return cls(sent=sent, rows=rows, places=list(range(len(rows))), fed=[one.tokens[0] for one in sent.rows])

    @property
    def has_drafts(self) -> bool:
        return any(row.draft is not None for row in self.rows)

    def learn(self, landed: Sequence[Row]) -> None:
        """What the round before this one has drawn."""
        drawn = {row.lane.index: row.tokens[0] for row in landed}
        self.fed = [
            drawn[row.lane.index] if fed == DRAWN else fed for row, fed in zip(self.rows, self.fed, strict=True)
        ]

    def over(self, lanes: Sequence[Lane]) -> Flight | None:
        """The round for those of ``lanes`` that went on as foreseen; None if none did."""
        wanted = {lane.index: lane for lane in lanes}
        left = [
            (row, place, fed)
            for row, place, fed in zip(self.rows, self.places, self.fed, strict=True)
            if wanted.get(row.lane.index) is row.lane and _is_as_foreseen(row.lane, self.sent.rows[place], fed)
        ]
        if not left:
            return None
        rows, places, fed = (list(part) for part in zip(*left, strict=True))
        return Flight(sent=self.sent, rows=rows, places=places, fed=fed)

    def landed(self) -> Pending:
        """Its outcome, once it was waited for."""
        drawn = self.sent.drawn()
        for row, place in zip(self.rows, self.places, strict=True):
            row.take(drawn[place])
        recorded = self.sent.recorded
        return Pending(step=recorded.step, rows=self.rows, recorded=recorded, places=self.places)


def _is_as_foreseen(lane: Lane, sent: RoundRow, fed: int) -> bool:
    return (
        lane.frontier == sent.frontier == len(lane.ledger) - 1 and lane.ledger[-1] == fed and lane.params is sent.params
    )


def goes_on(lane: Lane) -> bool:
    """Whether a lane will want another token after the one that is being drawn, as far as can be foreseen."""
    return lane.remaining > 1 and lane.frontier + 2 <= lane.space.entitlement * PAGE_TOKENS
