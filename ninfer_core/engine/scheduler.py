"""Who runs next. Knows counts, not lanes, so that it is tested without a model."""

from __future__ import annotations

from typing import Literal

UnitKind = Literal["prefill", "decode"]


class Scheduler:
    """Interleaves one staged prefill with decode rounds (engine.md §6).

    Before each prefill unit, ``due`` decode rounds run while others generate: ``rounds`` for a whole chunk,
    proportionally fewer, at least one, for a shorter unit.
    """

    def __init__(self, *, chunk: int, rounds: int) -> None:
        self.chunk = chunk
        self.rounds = rounds if rounds > 0 else max(1, chunk // 64)
        self.decode_run = 0  # decode rounds since the last prefill unit

    def due(self, unit_tokens: int) -> int:
        """Decode rounds owed before a prefill unit of this many tokens."""
        return max(1, -(-self.rounds * min(unit_tokens, self.chunk) // self.chunk))

    def may_admit(self, *, prefilling: bool, decoding: bool) -> bool:
        """Admission waits for the staged prefill, and lets generating requests have a round between admissions."""
        return not prefilling and (not decoding or self.decode_run != 0)

    def unit_tokens(self, remaining: int) -> int:
        """The next chunk of a prompt with ``remaining`` tokens to go."""
        return min(remaining, self.chunk)

    def next_unit(self, *, prefill_remaining: int, decode_rows: int) -> UnitKind | None:
        """``prefill_remaining``: prompt tokens the staged lane still has to process, 0 without one."""
        if prefill_remaining:
            owed = self.due(self.unit_tokens(prefill_remaining))
            return "decode" if decode_rows and self.decode_run < owed else "prefill"
        return "decode" if decode_rows else None

    def ran(self, kind: UnitKind) -> None:
        self.decode_run = 0 if kind == "prefill" else self.decode_run + 1
