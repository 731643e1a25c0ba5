"""Who runs next. Knows counts, not lanes, so that it is tested without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

UnitKind = Literal["prefill", "decode", "control"]
PASSED_OVER = 8  # prefill units a staged lane may be passed over before it runs next


class Staged(NamedTuple):
    """A lane whose prompt is not processed yet."""

    lane: int
    remaining: int  # prompt tokens to go
    skips: int  # prefill units of other lanes since its last
    split: int | None = None  # tokens to a place before the prompt's end where a unit has to end

    @property
    def ahead(self) -> int:
        """Tokens to the next place where a unit ends in any case."""
        return self.remaining if self.split is None else min(self.split, self.remaining)


class Scheduler:
    """Interleaves prefill with decode rounds (engine.md §6).

    Before each prefill unit, ``due`` decode rounds run while others generate: ``rounds`` for a whole chunk,
    proportionally fewer, at least one, for a shorter unit. ``concurrent`` stages several prompts at once: the shortest
    remaining one runs, and one that was passed over eight times runs next.
    """

    def __init__(self, *, chunk: int, rounds: int, concurrent: bool = False) -> None:
        self.chunk = chunk
        self.rounds = rounds if rounds > 0 else max(1, chunk // 64)
        self.concurrent = concurrent
        self.decode_run = 0  # decode and control units since the last prefill unit

    def due(self, unit_tokens: int) -> int:
        """Decode rounds owed before a prefill unit of this many tokens."""
        return max(1, -(-self.rounds * min(unit_tokens, self.chunk) // self.chunk))

    def may_admit(self, *, staged: int, decoding: int) -> bool:
        """Admission waits for the staged prefill (unless ``concurrent``), and lets generating requests have a round
        between admissions."""
        return (self.concurrent or not staged) and (not decoding or self.decode_run != 0)

    def unit_tokens(self, ahead: int) -> int:
        """The next chunk of a prompt with ``ahead`` tokens to go, to its end or to a split."""
        return min(ahead, self.chunk)

    def choose(self, staged: Sequence[Staged]) -> Staged | None:
        """The staged lane whose chunk comes next."""
        starving = [lane for lane in staged if lane.skips >= PASSED_OVER]
        if starving:
            return min(starving, key=lambda lane: (-lane.skips, lane.lane))
        return min(staged, key=lambda lane: (lane.remaining, lane.lane), default=None)

    def next_unit(self, *, staged: Staged | None, decode_rows: int, forced_rows: int) -> UnitKind | None:
        """``staged``: the lane a prefill unit would run for."""
        if forced_rows:
            return "control"
        if staged is not None:
            owed = self.due(self.unit_tokens(staged.ahead))
            return "decode" if decode_rows and self.decode_run < owed else "prefill"
        return "decode" if decode_rows else None

    def ran(self, kind: UnitKind) -> None:
        self.decode_run = 0 if kind == "prefill" else self.decode_run + 1
