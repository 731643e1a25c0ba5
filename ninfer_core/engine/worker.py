"""The engine thread: a thin loop over the queue, the lanes, the scheduler and the program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ninfer_core.api import (
    ApiError,
    CopySource,
    Delta,
    Done,
    DraftRequest,
    InvariantError,
    Progress,
    Result,
    Started,
    Unavailable,
)
from ninfer_core.api.jobs import FinishReason
from ninfer_core.engine.generation import Outbox
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.program import Pending, Program
from ninfer_core.engine.queue import WaitingQueue
from ninfer_core.engine.request import Request
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.errors import InternalError, QueueTimeout
from ninfer_core.kv.pages import PagePool
from ninfer_core.sampling.sampler import FAILED
from ninfer_core.text.output import OutputSession, Taken

log = structlog.get_logger()


class Worker:
    """Owns lanes, pages and states; only its thread changes them.

    One boundary: end what is cancelled, expired or stopped, admit at most one request, run exactly one unit, hand the
    events over. A unit becomes visible in this order: output preview, model state, accounting, output, event.
    """

    def __init__(
        self,
        *,
        program: Program,
        pool: PagePool,
        scheduler: Scheduler,
        lanes: int,
        sources: Sequence[CopySource],
        open_session: Callable[[Request], OutputSession],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program = program
        self.pool = pool
        self.scheduler = scheduler
        self.sources = tuple(sources)
        self.queue = WaitingQueue()
        self.outbox = Outbox()
        self.lanes: list[Lane | None] = [None] * lanes
        self.failed: str | None = None  # the class of an engine-wide failure
        self.on_failed: Callable[[], None] = lambda: None
        self._open_session = open_session
        self._clock = clock
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
                if self.idle and not len(self.queue):
                    self.queue.wait()
        except Exception as error:
            self._fail(error)

    @property
    def active(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane is not None]

    @property
    def idle(self) -> bool:
        return all(lane is None for lane in self.lanes)

    def step(self) -> None:
        """One worker boundary."""
        self._drop_waiting()
        self._end_cancelled()
        self._admit_one()
        self._run_unit()
        self.outbox.flush()

    def run_alone(self, request: Request) -> None:
        """Run one request to its end on the calling thread, before the engine's own is started (warm-up)."""
        self.queue.submit(request)
        self.step()
        while not self.idle:
            self.step()

    # ------------------------------------------------------------------ boundaries

    def _drop_waiting(self) -> None:
        closed = self.queue.closed_with
        if closed is not None:
            for request in self.queue.take_out(lambda request: True):
                self.outbox.put(request.generation, closed)
            for lane in self.active:
                self._end_with(lane, closed)
            return
        for request in self.queue.take_out(lambda request: request.cancelled):
            self.outbox.put(request.generation, Done(result=_empty(request, "cancelled")))
        now = self._clock()
        for request in self.queue.take_out(lambda request: now >= request.deadline):
            self.outbox.put(request.generation, QueueTimeout())

    def _end_cancelled(self) -> None:
        for lane in self.active:
            if lane.request.cancelled:
                self._finish(lane, "cancelled", None)

    def _admit_one(self) -> None:
        request = self.queue.head()
        if request is None:
            return
        active = self.active
        prefilling = any(lane.prefill_remaining for lane in active)
        if not self.scheduler.may_admit(prefilling=prefilling, decoding=any(lane.decoding for lane in active)):
            return
        free = next((i for i, lane in enumerate(self.lanes) if lane is None), None)
        if free is None:
            return
        space = self.pool.open(request.entitlement)
        if space is None:
            if not active:
                raise InvariantError(f"request {request.id} needs {request.entitlement} pages of an idle pool")
            return
        self.queue.pop()
        lane = Lane(
            index=free,
            request=request,
            space=space,
            state_slot=self.program.states.take(),
            session=self._open_session(request),
            drafting=self._begin_drafting(request),
            admitted=self._clock(),
            ledger=list(request.prompt_ids),
        )
        self.lanes[free] = lane
        self.outbox.put(request.generation, Started(prompt_tokens=lane.prompt_tokens, reused_tokens=0))
        self._report_progress(lane)

    def _begin_drafting(self, request: Request) -> list[tuple[CopySource, object]]:
        if not self.sources:
            return []
        facts = DraftRequest(request_id=request.id, prompt_ids=request.prompt_ids, tool_texts=request.tool_texts)
        return [(source, source.begin(facts)) for source in self.sources]

    def _run_unit(self) -> None:
        staged = next((lane for lane in self.active if lane.prefill_remaining), None)
        decoding = [lane for lane in self.active if lane.decoding]
        remaining = staged.prefill_remaining if staged else 0
        kind = self.scheduler.next_unit(prefill_remaining=remaining, decode_rows=len(decoding))
        if kind == "prefill" and staged is not None:
            self._commit(self.program.prefill(staged, self.scheduler.unit_tokens(remaining)))
            self._report_progress(staged)
        elif kind == "decode":
            self._commit(self.program.decode(decoding))
        else:
            return
        self.scheduler.ran(kind)

    def _commit(self, pending: Pending) -> None:
        taken = [self._preview(row.lane, row.tokens) for row in pending.rows]
        kept = [piece.kept if piece else 0 for piece in taken]
        self.program.commit(pending, kept)
        now = self._clock()
        for row, piece in zip(pending.rows, taken, strict=True):
            if piece is None:
                self._end_with(row.lane, InternalError(), reason="the model's logits are not finite")
            elif row.tokens:
                self._publish(row.lane, piece, now)

    def _preview(self, lane: Lane, tokens: list[int]) -> Taken | None:
        """What the output keeps of a row's tokens; None when the request has to fail before its next token."""
        sound = tokens[:-1] if tokens and tokens[-1] == FAILED else tokens
        piece = lane.session.preview(sound)
        return None if len(sound) != len(tokens) and piece.finish is None else piece

    # ------------------------------------------------------------------ what a client sees

    def _publish(self, lane: Lane, piece: Taken, now: float) -> None:
        if lane.first_token is None:
            lane.first_token = now
        lane.last_token = now
        kept = lane.ledger[len(lane.ledger) - piece.kept :]
        lane.session.commit(piece)
        lane.unpublished.extend(kept)
        self._emit(lane, piece.deltas, now)
        if piece.finish is not None:
            self._finish(lane, piece.finish, piece.stop_string)

    def _emit(self, lane: Lane, deltas: Sequence[tuple[Any, str]], now: float) -> None:
        if not deltas:
            return
        timings = lane.timings(now)
        for channel, text in deltas:
            ids, lane.unpublished = tuple(lane.unpublished), []
            event = Delta(channel=channel, text=text, token_ids=ids, timings=timings)
            self.outbox.put(lane.request.generation, event)

    def _report_progress(self, lane: Lane) -> None:
        if not lane.request.want_progress or self.lanes[lane.index] is not lane:
            return
        now = self._clock()
        event = Progress(
            total=lane.prompt_tokens,
            cache=0,
            processed=lane.frontier,
            time_ms=(now - lane.admitted) * 1e3,
            timings=lane.timings(now),
        )
        self.outbox.put(lane.request.generation, event)

    def _finish(self, lane: Lane, finish: FinishReason, stop_string: str | None) -> None:
        """End a lane with a result. Its resources are free before the caller learns of it."""
        now = self._clock()
        if finish == "cancelled":
            self._emit(lane, lane.session.flush(), now)
        timings = lane.timings(now)
        session = lane.session
        result = Result(
            finish=finish,
            stop_string=stop_string,
            reasoning=session.reasoning,
            content=session.content,
            token_ids=tuple(session.token_ids),
            prompt_tokens=lane.prompt_tokens,
            cached_tokens=0,
            completion_tokens=len(session.token_ids),
            reasoning_tokens=session.reasoning_tokens,
            timings=timings,
            seed=lane.request.params.seed,
            lane=lane.index,
            prompt_ids=lane.request.prompt_ids,
        )
        self._release(lane)
        self.outbox.put(lane.request.generation, Done(result=result, token_ids=tuple(lane.unpublished)))
        log.info(
            "request_done",
            id=lane.request.id,
            finish=finish,
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            ttft_seconds=round(timings.prompt_ms / 1e3, 4),
            decode_seconds=round(timings.predicted_ms / 1e3, 4),
            drafted_tokens=lane.drafted,
            accepted_tokens=lane.accepted,
        )

    def _end_with(self, lane: Lane, error: ApiError, *, reason: str = "") -> None:
        """End a lane with an error."""
        self._release(lane)
        self.outbox.put(lane.request.generation, error)
        log.warning("request_error", id=lane.request.id, code=error.code, reason=reason or error.message)

    def _release(self, lane: Lane) -> None:
        self.lanes[lane.index] = None
        lane.space.close()
        self.program.states.give_back(lane.state_slot)
        for source, handle in lane.drafting:
            source.finish(handle)

    def _fail(self, error: Exception) -> None:
        """An engine-wide failure: everything running and waiting ends, nothing new is taken."""
        self.failed = type(error).__name__
        log.critical("engine_failed", error=type(error).__name__, exc_info=error)
        self.queue.close(Unavailable(message="The engine has failed; the server needs a restart."))
        for lane in self.active:
            self.lanes[lane.index] = None
            self.outbox.put(lane.request.generation, InternalError())
        for request in self.queue.take_out(lambda request: True):
            self.outbox.put(request.generation, self.queue.closed_with or Unavailable())
        self.outbox.flush()
        self.on_failed()


def _empty(request: Request, finish: FinishReason) -> Result:
    """The result of a request that never reached a lane."""
    from ninfer_core.api import Timings

    return Result(
        finish=finish,
        stop_string=None,
        reasoning="",
        content="",
        token_ids=(),
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        timings=Timings(prompt_n=len(request.prompt_ids)),
        seed=request.params.seed,
        prompt_ids=request.prompt_ids,
    )
