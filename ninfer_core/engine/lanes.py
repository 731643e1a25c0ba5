"""Lanes: the admitted requests and everything they own until they end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ninfer_core.api import CopySource, Draft, DraftRequest, Timings, TokenLogprob
from ninfer_core.engine.generation import LocalGeneration
from ninfer_core.engine.request import Request
from ninfer_core.errors import InvariantError
from ninfer_core.kv.pages import PAGE_TOKENS, AddressSpace, PagePool, pages_for
from ninfer_core.kv.prefix import Held, PrefixTable
from ninfer_core.kv.state import StatePool
from ninfer_core.sampling.params import SamplingParams
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
    params: SamplingParams  # of the next round; changes once when the answer has a sampler of its own
    ledger: list[int] = field(default_factory=list)
    frontier: int = 0
    reused: int = 0  # prompt tokens it did not process: those of a held prefix
    counts: Counter[int] = field(default_factory=Counter)  # generated tokens, for penalties
    first_token: float | None = None
    last_token: float | None = None
    drafted: int = 0
    accepted: int = 0
    skips: int = 0  # prefill units other staged lanes ran since this one's last
    forced: tuple[int, ...] = ()  # tokens to insert before the next round
    inserted: int = 0  # control tokens committed so far
    lease_settled: bool = False  # the pool could not extend this lane: it ends where its pages do
    unpublished: list[int] = field(default_factory=list)  # committed tokens no event has carried yet
    marks: list[tuple[int, TokenLogprob]] = field(default_factory=list)  # records waiting for their text
    records: list[TokenLogprob] = field(default_factory=list)  # records published
    scores: tuple[float, ...] = ()  # of the request's ``scored``, once the first token is drawn

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def prefill_remaining(self) -> int:
        return max(self.prompt_tokens - self.frontier, 0)

    @property
    def prefill_split(self) -> int | None:
        """Tokens to the end of what its group shares: a unit ends there, whoever comes first and whether or not it is
        held, so that all of the group are computed alike."""
        prefix = self.request.prefix
        return len(prefix.ids) - self.frontier if prefix is not None and self.frontier < len(prefix.ids) else None

    @property
    def decoding(self) -> bool:
        return self.first_token is not None and not self.forced

    @property
    def remaining(self) -> int:
        """Tokens the next round may commit: the output limit, and the thinking budget while it reasons."""
        left = self.session.remaining
        budget = self.request.budget
        if budget is not None and budget.effective is not None and not self.inserted and self.session.in_reasoning:
            left = min(left, max(budget.effective - self.session.reasoning_tokens, 1))
        return left

    @property
    def budget_spent(self) -> bool:
        """The thinking budget is reached and the reasoning still open, with no close tag under way."""
        budget = self.request.budget
        return (
            budget is not None
            and budget.effective is not None
            and not self.inserted
            and self.session.in_reasoning
            and not self.session.closing
            and self.session.reasoning_tokens >= budget.effective
        )

    def propose(self) -> tuple[Draft, CopySource, object] | None:
        """The first proposal a source makes for the next round, cut so that its correction or bonus still fits."""
        if not self.drafting:
            return None
        room = self.remaining - 1
        if room < 1:
            return None
        for source, handle in self.drafting:
            most = min(room, source.max_drafts)
            draft = source.propose(handle, self.ledger, most)
            if draft is None:
                continue
            if not isinstance(draft, Draft) or len(draft.tokens) > most:
                raise InvariantError(f"{type(source).__module__} proposed {draft!r:.80}, not a Draft of up to {most}")
            if draft.tokens:
                return draft, source, handle
        return None

    def timings(self, now: float) -> Timings:
        """What a client sees: prompt time to the first token, generation time from there to the last."""
        started = self.first_token if self.first_token is not None else now
        last = self.last_token if self.last_token is not None else started
        return Timings(
            cache_n=self.reused,
            prompt_n=self.prompt_tokens - self.reused,
            prompt_ms=(started - self.admitted) * 1e3,
            predicted_n=len(self.session.token_ids),
            predicted_ms=(last - started) * 1e3,
            draft_n=self.drafted,
            draft_n_accepted=self.accepted,
            prompt_done_n=None if self.first_token is not None else self.frontier - self.reused,
        )


class LaneTable:
    """The lanes with the pages and states they hold. A lane takes and gives back all its resources at once."""

    def __init__(
        self,
        *,
        count: int,
        pool: PagePool,
        states: StatePool,
        sources: Sequence[CopySource],
        open_session: Callable[[Request], OutputSession],
        window: int | None,
    ) -> None:
        if states.parts and states.slots <= count:
            # a lane that begins with what is held copies its state
            raise InvariantError(f"state: {states.slots} slots for {count} lanes; there must be one more")
        self.pool = pool
        self.states = states
        self.prefixes = PrefixTable(pool, states)
        self._lanes: list[Lane | None] = [None] * count
        self._sources = tuple(sources)
        self._open_session = open_session
        self._releasing: Lane | None = None
        self._window = window  # --kv-lease-growth: output tokens reserved at a time; None: all of them at once

    @property
    def active(self) -> list[Lane]:
        """By lane number."""
        return [lane for lane in self._lanes if lane is not None]

    @property
    def staged(self) -> list[Lane]:
        """Lanes whose prompt is not processed yet."""
        return [lane for lane in self._lanes if lane is not None and lane.prefill_remaining]

    @property
    def decoding(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane is not None and lane.decoding]

    @property
    def forced(self) -> list[Lane]:
        """Lanes with tokens to insert."""
        return [lane for lane in self._lanes if lane is not None and lane.forced]

    def admit(self, request: Request, now: float) -> Lane | None:
        """The lowest free lane with all the pages the request is entitled to, or None. Nothing is held then, nor when
        opening it fails. What is held of the request's prefix is where it begins."""
        free = next((i for i, lane in enumerate(self._lanes) if lane is None), None)
        if free is None:
            return None
        held = self.prefixes.find(request.prefix, request.prompt_ids)
        space = self._open_space(request, held)
        if space is None:
            if not self.active:
                raise InvariantError(f"request {request.id} needs {request.entitlement} pages of an idle pool")
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(space.close)
            slot = self._take_state(held, undo)
            lane = Lane(
                index=free,
                request=request,
                space=space,
                state_slot=slot,
                session=self._open_session(request),
                drafting=[],
                admitted=now,
                params=request.params,
                ledger=list(request.prompt_ids),
                frontier=space.shared * PAGE_TOKENS,
                reused=space.shared * PAGE_TOKENS,
            )
            facts = DraftRequest(request_id=request.id, prompt_ids=request.prompt_ids, tool_texts=request.tool_texts)
            for source in self._sources:
                handle = source.begin(facts)
                lane.drafting.append((source, handle))
                undo.callback(source.finish, handle)
            undo.pop_all()
        self._lanes[free] = lane
        if request.prefix is not None:
            request.prefix.coming -= 1
        return lane

    def _open_space(self, request: Request, held: Held | None) -> AddressSpace | None:
        """Its pages, for which what is held otherwise gives way when that is enough."""
        lease = self._first_lease(request)
        run = held.run if held is not None else None
        missing = lease - len(run.pages if run is not None else ())
        if self.pool.available < missing <= self.pool.available + self.prefixes.could_free(keep=held):
            self.prefixes.give_way(missing, keep=held)
        return self.pool.open(lease, run)

    def _take_state(self, held: Held | None, undo: contextlib.ExitStack) -> int:
        """A slot with the state the lane begins with."""
        self.prefixes.give_state_way(keep=held)
        if held is None or held.state_slot is None:
            slot = self.states.take()
            undo.callback(self.states.give_back, slot)
            return slot
        slot = self.states.take_unset()
        undo.callback(self.states.give_back, slot)
        self.states.copy(held.state_slot, slot)
        return slot

    def awaits_prefix(self, request: Request) -> bool:
        """Whether a lane is processing what this request begins with, so that it need not do so again."""
        prefix = request.prefix
        if prefix is None or prefix in self.prefixes or not self.prefixes.can_hold:
            return False
        return any(lane.request.prefix is prefix and lane.prefill_split is not None for lane in self.active)

    def hold_prefix(self, lane: Lane) -> bool | None:
        """Keep the beginning of a lane that has just processed all of its group's prefix, for the others: whether
        there was a place for it, None where nothing is to be kept."""
        prefix = lane.request.prefix
        if prefix is None or not prefix.wanted or lane.frontier != len(prefix.ids) or prefix in self.prefixes:
            return None
        return self.prefixes.hold(prefix, lane.space, lane.state_slot)

    def check(self) -> None:
        """Raise InvariantError unless every page and every state slot is accounted for exactly once."""
        self.pool.check()
        taken = [*(lane.state_slot for lane in self.active), *self.prefixes.state_slots]
        if len(set(taken)) != len(taken) or len(taken) + self.states.available != self.states.slots:
            raise InvariantError(f"state: slots {taken} and {self.states.available} free of {self.states.slots}")

    def generations(self) -> list[LocalGeneration]:
        """Who still waits for a lane's end, a lane whose release has failed included."""
        held = [*self.active, *([self._releasing] if self._releasing is not None else [])]
        return [lane.request.generation for lane in held if lane.request.generation is not None]

    def release(self, lane: Lane) -> None:
        """Free everything a lane holds. A copy source that raises is the engine's failure, after all else is free."""
        self._lanes[lane.index] = None
        self._releasing = lane
        lane.space.close()
        self.states.give_back(lane.state_slot)
        for source, handle in lane.drafting:
            source.finish(handle)
        self._releasing = None

    def grow_leases(self) -> list[Lane]:
        """Extend every lane's pages for its next step (engine.md §5.3); the lanes that had to be cut short now.

        A lane the pool cannot extend ends at the frontier its pages cover.
        """
        cut: list[Lane] = []
        if self._window is None:
            return cut
        for lane in self.active:
            if lane.prefill_remaining or lane.lease_settled:
                continue
            # one token beyond the step: a lane that cannot grow still has room for its last one
            ahead = max(self._step_tokens(), len(lane.forced)) + 1
            if lane.frontier + ahead <= lane.space.entitlement * PAGE_TOKENS:
                continue
            if not self._extend(lane, ahead):
                lane.lease_settled = True
                covered = lane.space.entitlement * PAGE_TOKENS
                lane.session.lower_limit(len(lane.session.token_ids) + covered - lane.frontier)
                cut.append(lane)
        return cut

    def _extend(self, lane: Lane, ahead: int) -> bool:
        """One window more, or as much of it as there is; False when not even ``ahead`` tokens are covered."""
        assert self._window is not None
        goal = min(lane.request.entitlement, pages_for(lane.frontier + max(self._window, ahead)))
        wanted = max(goal - lane.space.entitlement, 0)
        self.prefixes.give_way(wanted)
        lane.space.grow(min(wanted, self.pool.available))
        reach = min(lane.frontier + ahead, lane.prompt_tokens + max(lane.request.limit - 1, 0))
        return reach <= lane.space.entitlement * PAGE_TOKENS

    def _first_lease(self, request: Request) -> int:
        if self._window is None:
            return request.entitlement
        output = min(request.limit, max(self._window, self._step_tokens() + 1))
        return pages_for(len(request.prompt_ids) + max(output - 1, 0))

    def _step_tokens(self) -> int:
        """The most tokens a round may commit."""
        return 1 + max((source.max_drafts for source in self._sources), default=0)
