"""A lane: one admitted request and everything it owns until it ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ninfer_core.api import CopySource, Draft, Timings
from ninfer_core.engine.request import Request
from ninfer_core.kv.pages import AddressSpace
from ninfer_core.text.output import OutputSession


@dataclass(kw_only=True, slots=True, eq=False)
class Lane:
    """``ledger`` is the prompt and the committed output; the first ``frontier`` tokens of it are in the cache and the
    state. While decoding ``frontier == len(ledger) - 1``: the last token is chosen, not yet processed."""

    index: int
    request: Request
    space: AddressSpace
    state_slot: int
    session: OutputSession
    drafting: list[tuple[CopySource, object]]  # proposers in order, each with this request's handle
    admitted: float  # monotonic seconds
    ledger: list[int] = field(default_factory=list)
    frontier: int = 0
    counts: Counter[int] = field(default_factory=Counter)  # generated tokens, for penalties
    first_token: float | None = None
    last_token: float | None = None
    drafted: int = 0
    accepted: int = 0
    unpublished: list[int] = field(default_factory=list)  # committed tokens no event has carried yet

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def prefill_remaining(self) -> int:
        return max(self.prompt_tokens - self.frontier, 0)

    @property
    def decoding(self) -> bool:
        return self.first_token is not None

    def propose(self) -> tuple[Draft, CopySource, object] | None:
        """The first proposal a source makes for the next round, cut so that its correction or bonus still fits."""
        room = self.session.remaining - 1
        if room < 1:
            return None
        for source, handle in self.drafting:
            draft = source.propose(handle, self.ledger, min(room, source.max_drafts))
            if draft is not None and draft.tokens:
                return draft, source, handle
        return None

    def timings(self, now: float) -> Timings:
        """What a client sees: prompt time to the first token, generation time from there to the last."""
        started = self.first_token if self.first_token is not None else now
        last = self.last_token if self.last_token is not None else started
        return Timings(
            prompt_n=self.prompt_tokens,
            prompt_ms=(started - self.admitted) * 1e3,
            predicted_n=len(self.session.token_ids),
            predicted_ms=(last - started) * 1e3,
            draft_n=self.drafted,
            draft_n_accepted=self.accepted,
            prompt_done_n=None if self.first_token is not None else self.frontier,
        )
