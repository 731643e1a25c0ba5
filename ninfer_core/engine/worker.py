"""The engine thread: a thin loop over the queue, the lanes, the scheduler and the program."""

from __future__ import annotations

import copy
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import structlog

from ninfer_core.api import ApiError, InvariantError, Unavailable
from ninfer_core.api.jobs import FinishReason
from ninfer_core.engine.generation import Outbox
from ninfer_core.engine.lanes import Lane, LaneTable
from ninfer_core.engine.program import Pending, Program, Row
from ninfer_core.engine.publisher import Publisher
from ninfer_core.engine.queue import WaitingQueue
from ninfer_core.engine.request import Request
from ninfer_core.engine.scheduler import Scheduler, Staged
from ninfer_core.engine.stats import EMPTY, Counters, Gauges, HostClock, Running, Snapshot, Waiting
from ninfer_core.errors import InternalError, QueueTimeout
from ninfer_core.kv.memory import is_shortage
from ninfer_core.sampling.sampler import FAILED
from ninfer_core.text.output import Taken

log = structlog.get_logger()


def raised_at(error: BaseException) -> str:
    """``file.py:line`` of the innermost frame."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno}" if last else "unknown"


RECOVERIES = 8  # in a row, without a completed unit between them; one more fails the engine
BACK_OFF = 4  # boundaries without admission after a recovery
LISTED = 16  # waiting requests a snapshot names


class Worker:
    """Owns the lanes; only its thread changes them.

    One boundary: end what is cancelled, expired or stopped, admit at most one request, run exactly one unit, publish
    the
    figures, hand the events over. A unit becomes visible in this order: output preview, model state, accounting,
    output, event. Out of memory fails what was running and nothing else, as does a broken invariant when
    ``recovers_invariants``; any other failure is the engine's.
    """

    def __init__(
        self,
        *,
        program: Program,
        lanes: LaneTable,
        scheduler: Scheduler,
        recovers_invariants: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program = program
        self.lanes = lanes
        self.scheduler = scheduler
        self.queue = WaitingQueue()
        self.outbox = Outbox()
        self.counters = Counters()
        self.snapshot: Snapshot = EMPTY  # replaced whole at each boundary; any thread may read it
        self.failed: str | None = None  # the class of an engine-wide failure
        self.on_failed: Callable[[], None] = lambda: None
        self._publisher = Publisher(self.outbox, self._now)
        self._recovers_invariants = recovers_invariants
        self._alone = False  # while a request runs before the engine's thread does
        self._clock = clock
        self._host: HostClock = program.clock
        self._streak = 0
        self._back_off = 0
        self._last_selected_frontier = 0
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ninfer-engine", daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end; False when it is still running after ``timeout`` seconds."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not (self.queue.closed_with and self.idle):
                self.step()
                if not self.lanes.active and not len(self.queue):
                    self.queue.wait()
            self.program.synchronize()  # a round that was sent ahead for nobody may still run
        except Exception as error:
            self._fail(error)

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing is held for what is to come."""
        return not self.lanes.active and not self.lanes.prefixes

    def _now(self) -> float:
        return self._clock()

    def step(self) -> None:
        """One worker boundary."""
        try:
            self._boundary()
        except Exception as error:
            if not (is_shortage(error) or (isinstance(error, InvariantError) and self._recovers_invariants)):
                raise
            self._recover(error)
        self._maintain()

    def _boundary(self) -> None:
        with self._host.phase("engine_boundary"):
            self._drop_waiting()
            self._end_cancelled()
            self._grow_leases()
            self._admit_one()
            self._end_cancelled()
        self._run_unit()

    def _maintain(self) -> None:
        with self._host.phase("engine_maintenance"):
            self.lanes.prefixes.drop_unwanted()
            self.publish()
            self._publisher.flush()

    def run_alone(self, request: Request) -> None:
        """Run one request to its end on the calling thread, before the engine's own is started (warm-up). Nothing is
        recovered from: where this one fails, the others would."""
        self._alone = True
        self.queue.submit(request)
        self._boundary()
        self._maintain()
        while not self.idle:
            self._boundary()
            self._maintain()
        self._alone = False
        self.counters = Counters()  # figures count from when the engine is ready
        self._host.reset()
        self.publish()

    # ------------------------------------------------------------------ boundaries

    def _drop_waiting(self) -> None:
        closed = self.queue.closed_with
        if closed is not None:
            for request in self.queue.take_out(lambda request: True):
                self._turn_away(request, closed)
            for lane in self.lanes.active:
                self._end_with(lane, closed)
            self.lanes.prefixes.drop_all()
            return
        now = self._clock()
        for request in self.queue.take_out(lambda request: request.cancelled):
            self.counters.waiting_cancelled += 1
            self.counters.waiting_abandoned_seconds += now - request.submitted
            self._publisher.turned_away(request, "cancelled")
        for request in self.queue.take_out(lambda request: now >= request.deadline):
            self.counters.waiting_expired += 1
            self.counters.waiting_abandoned_seconds += now - request.submitted
            self._turn_away(request, QueueTimeout())

    def _end_cancelled(self) -> None:
        for lane in self.lanes.active:
            if lane.request.cancelled:
                if lane.prefill_remaining:
                    self.counters.cancelled_prefills += 1
                    self.counters.cancelled_prefill_computed_tokens += lane.frontier - lane.reused
                self._publisher.output(lane, lane.session.flush(), (), self._clock())
                self._finish(lane, "cancelled", None)

    def _grow_leases(self) -> None:
        for lane in self.lanes.grow_leases():
            log.warning("kv_lease_short", id=lane.request.id, output_tokens=lane.session.remaining)

    def _admit_one(self) -> None:
        if self._back_off:
            self._back_off -= 1
            return
        request = self.queue.head()
        if request is None:
            return
        if not self.scheduler.may_admit(staged=len(self.lanes.staged), decoding=len(self.lanes.decoding)):
            return
        if self.lanes.awaits_prefix(request):
            return
        try:
            lane = self.lanes.admit(request, self._clock())
        except Exception as error:
            if self._alone or not is_shortage(error):
                raise
            self.queue.pop()
            self._turn_away(request, InternalError())
            log.warning("admission_failed", id=request.id, error=type(error).__name__)
            self._count_failure(error)
            return
        if lane is None:
            return
        self.queue.pop()
        self._count_admission(lane)
        self._publisher.started(lane)

    def _count_admission(self, lane: Lane) -> None:
        self.counters.reused_prompt_tokens += lane.reused
        self._last_selected_frontier = lane.reused
        if lane.reused:
            self.counters.selected_shared_prefix += 1
            self.counters.state_forks += bool(self.program.states.parts)
        else:
            self.counters.selected_root += 1

    def _run_unit(self) -> None:
        began = time.perf_counter()
        staged = self.scheduler.choose(
            [Staged(x.index, x.prefill_remaining, x.skips, x.prefill_split) for x in self.lanes.staged]
        )
        decoding, forced = self.lanes.decoding, self.lanes.forced
        kind = self.scheduler.next_unit(staged=staged, decode_rows=len(decoding), forced_rows=len(forced))
        if kind is None:
            return
        self._host.work_class = kind
        if kind == "prefill" and staged is not None:
            self._prefill(staged)
        elif kind == "decode":
            # with a prompt to process, its next unit comes before the next round
            pending = self.program.decode(decoding, ahead=staged is None)
            self._commit(pending)
            self.counters.decode_rounds += 1
            self.counters.decode_row_rounds += len(pending.rows)
        else:
            self._insert(forced)
        self.scheduler.ran(kind)
        self._streak = 0
        spent = time.perf_counter() - began
        if kind == "prefill":
            self.counters.prefill_seconds += spent
        else:
            self.counters.decode_seconds += spent

    def _prefill(self, staged: Staged) -> None:
        lanes = {lane.index: lane for lane in self.lanes.staged}
        lane = lanes.pop(staged.lane)
        lane.skips = 0
        for other in lanes.values():
            other.skips += 1
        count = self.scheduler.unit_tokens(staged.ahead)
        self.counters.prefill_units += 1
        self.counters.computed_prefill_tokens += count
        self._commit(self.program.prefill(lane, count))
        held = self.lanes.hold_prefix(lane)
        if held is not None:
            self.counters.captures_completed += held
            self.counters.captures_skipped += not held

    def _insert(self, lanes: Sequence[Lane]) -> None:
        """Commit tokens nobody drew. What the output would not keep of them is never processed."""
        spans = [lane.forced[: lane.session.preview(lane.forced).kept] for lane in lanes]
        self.counters.control_units += 1
        for lane, span in zip(lanes, spans, strict=True):
            lane.inserted += len(span)
            lane.forced = ()
        self._commit(self.program.insert(lanes, spans))

    # ------------------------------------------------------------------ commits

    def _commit(self, pending: Pending) -> None:
        with self._host.phase("engine_commit_output"):
            taken = [self._preview(row.lane, row.tokens) for row in pending.rows]
        kept = [piece.kept if piece else 0 for piece in taken]
        with self._host.phase("program_post"):
            self.program.commit(pending, kept)
        with self._host.phase("engine_commit_output"):
            now = self._clock()
            for row, piece in zip(pending.rows, taken, strict=True):
                if row.lane.first_token is None:
                    # a prompt has moved on; the last of it is told before the first output
                    self._publisher.progress(row.lane)
                if piece is None:
                    self._end_with(row.lane, InternalError(), reason="the model's logits are not finite")
                elif row.tokens:
                    self._take(row, piece, now)

    def _preview(self, lane: Lane, tokens: list[int]) -> Taken | None:
        """What the output keeps of a row's tokens; None when the request has to fail before its next token."""
        sound = tokens[:-1] if tokens and tokens[-1] == FAILED else tokens
        piece = lane.session.preview(sound)
        return None if len(sound) != len(tokens) and piece.finish is None else piece

    def _take(self, row: Row, piece: Taken, now: float) -> None:
        """The output takes what the model has taken, then the client sees it."""
        lane = row.lane
        if lane.first_token is None:
            lane.first_token = now
            lane.scores = row.drawn[0].scores if row.drawn else ()
        else:
            self.counters.committed_decode_tokens += piece.kept
        lane.last_token = now
        was_reasoning = lane.session.in_reasoning
        lane.session.commit(piece)
        lane.unpublished.extend(piece.token_ids)
        self._keep_records(row, piece)
        self._publisher.output(lane, piece.deltas, piece.calls, now)
        if piece.finish is not None:
            self._finish(lane, piece.finish, piece.stop_string)
            return
        if lane.budget_spent and lane.request.budget is not None:
            lane.forced = lane.request.budget.guidance
        if was_reasoning and not lane.session.in_reasoning and lane.request.post_params is not None:
            # from the next round on: tokens accepted with the close keep the reasoning's sampler
            lane.params = lane.request.post_params

    def _keep_records(self, row: Row, piece: Taken) -> None:
        lane = row.lane
        if lane.request.logprobs is None:
            return
        for one, begins in zip(row.drawn, piece.marks, strict=False):
            if begins is not None and one.logprob is not None:
                lane.marks.append((begins, one.logprob))
        if lane.session.in_reasoning:
            # what looked like the answer has turned out to open a reasoning block
            lane.marks.clear()

    def _finish(self, lane: Lane, finish: FinishReason, stop_string: str | None) -> None:
        """End a lane with a result, which the caller learns at the end of the boundary, when the lane is free.

        The result is made first: a lane that is gone cannot tell of a failure any more.
        """
        self._publisher.finished(lane, finish, stop_string)
        self.lanes.release(lane)
        if finish != "cancelled":
            self.counters.requests += 1
            self.counters.prefix_cache_hit_tokens += lane.reused
            self.counters.draft_tokens += lane.drafted
            self.counters.draft_accepted_tokens += lane.accepted

    def _end_with(self, lane: Lane, error: ApiError, *, reason: str = "") -> None:
        """End a lane with an error."""
        self.lanes.release(lane)
        self.counters.requests_failed += 1
        self._publisher.failed(lane, error, reason)

    def _turn_away(self, request: Request, error: ApiError) -> None:
        self.counters.requests_failed += 1
        self._publisher.turned_away(request, error)

    # ------------------------------------------------------------------ figures

    def publish(self) -> None:
        """Replace the snapshot."""
        pool, active = self.lanes.pool, self.lanes.active
        now = self._clock()
        depth, waiting = self.queue.look(LISTED)
        self.snapshot = Snapshot(
            counters=copy.copy(self.counters),
            gauges=Gauges(
                running=len(active),
                prefilling=len(self.lanes.staged),
                decode_ready=len(self.lanes.decoding),
                waiting=depth,
                kv_pages=pool.leased,
                kv_lease_pages=pool.set_aside,
                state_slots=self.program.states.slots - self.program.states.available,
                last_selected_frontier=self._last_selected_frontier,
            ),
            host=self._host.read(),
            queue=tuple(
                Waiting(request_id=request.id, position=at, wait_seconds=max(now - request.submitted, 0.0))
                for at, request in enumerate(waiting)
            ),
            running=tuple(
                Running(lane=lane.index, prompt_tokens=lane.prompt_tokens, reused_tokens=lane.reused) for lane in active
            ),
            at=now,
        )

    # ------------------------------------------------------------------ failures

    def _recover(self, error: BaseException) -> None:
        """Fail what was running, keep the queue, go on; the ninth time in a row it is the engine that fails."""
        log.warning("engine_recovery", error=type(error).__name__, running=len(self.lanes.active))
        self._count_failure(error)
        self.program.synchronize()
        for lane in self.lanes.active:
            self._end_with(lane, InternalError(), reason=f"the engine recovered from {type(error).__name__}")
        self.lanes.prefixes.drop_all()
        self.lanes.check()
        if self.lanes.pool.available != self.lanes.pool.total:
            raise InvariantError("pages are still held after every lane was released") from error
        self.counters.engine_recoveries += 1

    def _count_failure(self, error: BaseException) -> None:
        """One more without a completed unit since: admission rests for a while, and there is a last one."""
        self._streak += 1
        self._back_off = BACK_OFF
        if self._streak > RECOVERIES:
            raise InvariantError(f"{RECOVERIES} recoveries in a row did not help") from error

    def _fail(self, error: Exception) -> None:
        """An engine-wide failure: everything running and waiting ends, nothing new is taken."""
        self.failed = type(error).__name__
        closed = Unavailable(message="The engine has failed; the server needs a restart.")
        self.queue.close(closed)
        for generation in self.lanes.generations():
            self.outbox.put(generation, InternalError())
        for request in self.queue.take_out(lambda request: True):
            self.outbox.put(request.generation, closed)
        self.outbox.flush()
        self.on_failed()
        # last: nothing above may depend on a log that can be written; the text may quote a prompt
        log.critical("engine_failed", error=type(error).__name__, at=raised_at(error))
        log.debug("engine_failed_trace", exc_info=error)
