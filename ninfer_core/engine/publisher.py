"""What clients see of a lane: text, tool calls, progress, log probabilities, the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import structlog

from ninfer_core.api import (
    ApiError,
    Called,
    Delta,
    Done,
    GeneratedCall,
    Progress,
    Result,
    Started,
    Timings,
    TokenLogprob,
    ToolReport,
)
from ninfer_core.api.jobs import Channel, FinishReason
from ninfer_core.engine.generation import Outbox
from ninfer_core.engine.lanes import Lane
from ninfer_core.engine.request import Request

log = structlog.get_logger()


class Publisher:
    """Turns what became real into events. Nothing here changes the engine's state."""

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock

    def started(self, lane: Lane) -> None:
        """The reuse choice is committed; before any output."""
        self._outbox.put(lane.request.generation, Started(prompt_tokens=lane.prompt_tokens, reused_tokens=lane.reused))
        self.progress(lane)

    def progress(self, lane: Lane) -> None:
        """Where the prompt stands, for a request that wants to know."""
        if not lane.request.want_progress:
            return
        now = self._clock()
        event = Progress(
            total=lane.prompt_tokens,
            cache=lane.reused,
            processed=lane.frontier,
            time_ms=(now - lane.admitted) * 1e3,
            timings=lane.timings(now),
        )
        self._outbox.put(lane.request.generation, event)

    def output(
        self, lane: Lane, deltas: Sequence[tuple[Channel, str]], calls: Sequence[GeneratedCall], now: float
    ) -> None:
        """Published pieces; each carries the tokens and records that became visible with it."""
        if not deltas and not calls:
            return
        timings = lane.timings(now)
        shown = lane.session.answer_chars - sum(len(text) for channel, text in deltas if channel == "content")
        for channel, text in deltas:
            records: tuple[TokenLogprob, ...] = ()
            if channel == "content":
                shown += len(text)
                records = _released(lane, shown)
            delta = Delta(channel=channel, text=text, token_ids=_unpublished(lane), timings=timings, logprobs=records)
            self._outbox.put(lane.request.generation, delta)
        first = len(lane.session.calls) - len(calls)
        for index, call in enumerate(calls, first):
            # markup that a stop string may still cut keeps its records
            records = _released(lane, lane.session.answer_passed)
            called = Called(index=index, call=call, token_ids=_unpublished(lane), timings=timings, logprobs=records)
            self._outbox.put(lane.request.generation, called)

    def finished(self, lane: Lane, finish: FinishReason, stop_string: str | None) -> Result:
        """The end of a lane that has a result."""
        if stop_string is None:
            # text of these was withheld or never completed
            late = tuple(record for _, record in lane.marks)
            lane.records.extend(late)
        else:
            # a stop string drops the records of what it cuts
            late = _released(lane, lane.session.answer_passed)
        timings = lane.timings(self._clock())
        result = _result(lane, finish, stop_string, timings)
        self._outbox.put(lane.request.generation, Done(result=result, token_ids=tuple(lane.unpublished), logprobs=late))
        if lane.request.generation is None or lane.request.scored:
            # the engine's own warm-up is nobody's request; judgements are told of all together
            return result
        log.info(
            "request_done",
            id=lane.request.id,
            request_id=lane.request.transport_id,
            protocol=lane.request.protocol,
            finish=finish,
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            ttft_seconds=round(timings.prompt_ms / 1e3, 4),
            decode_seconds=round(timings.predicted_ms / 1e3, 4),
            drafted_tokens=lane.drafted,
            accepted_tokens=lane.accepted,
            **_tool_facts(result.tool_report),
            **_thinking_facts(lane),
        )
        if result.tool_report.fallback != "none" and not result.calls:
            log.warning("tool_markup_kept_as_text", id=lane.request.id, reason=result.tool_report.fallback)
        return result

    def failed(self, lane: Lane, error: ApiError, reason: str) -> None:
        """The end of a lane that has none."""
        self._outbox.put(lane.request.generation, error)
        # a stop ends requests as the operator asked; that is no warning
        say = log.info if error.status == 503 else log.warning
        request = lane.request
        named = {"id": request.id, "request_id": request.transport_id, "protocol": request.protocol}
        say("request_error", **named, code=error.code, reason=reason or error.message)

    def turned_away(self, request: Request, outcome: ApiError | FinishReason) -> None:
        """The end of a request that never reached a lane."""
        if isinstance(outcome, ApiError):
            self._outbox.put(request.generation, outcome)
        else:
            self._outbox.put(request.generation, Done(result=empty_result(request, outcome)))

    def flush(self) -> None:
        """Hand everything of this boundary to the event loop at once."""
        self._outbox.flush()


def _unpublished(lane: Lane) -> tuple[int, ...]:
    ids, lane.unpublished = tuple(lane.unpublished), []
    return ids


def _thinking_facts(lane: Lane) -> dict[str, int | str | bool]:
    """For the log: the effort and the thinking budget that were asked for, the budget that held where that is another,
    and whether the answer's own sampler took over, where there is one."""
    request, facts = lane.request, dict[str, int | str | bool]()
    if request.asked_effort is not None:
        facts["requested_reasoning_effort"] = request.asked_effort
    if request.post_params is not None:
        facts["post_thinking"] = lane.params is request.post_params
    budget = request.budget
    if budget is not None:
        facts["thinking_budget"] = budget.requested
        if budget.effective is not None and budget.effective != budget.requested:
            facts["effective_thinking_budget"] = budget.effective
    return facts


def _tool_facts(report: ToolReport) -> dict[str, object]:
    """The log's account of how tool markup was read: what is out of the ordinary, nothing for an answer without any."""
    plain = dataclasses.asdict(ToolReport())
    facts = {name: value for name, value in dataclasses.asdict(report).items() if value != plain[name]}
    return {"tool_call_parse": facts} if facts else {}


def _released(lane: Lane, shown: int) -> tuple[TokenLogprob, ...]:
    """The records whose token's first byte is among the first ``shown`` characters of the answer."""
    out = [record for begins, record in lane.marks if begins < shown]
    lane.marks = [(begins, record) for begins, record in lane.marks if begins >= shown]
    lane.records.extend(out)
    return tuple(out)


def _result(lane: Lane, finish: FinishReason, stop_string: str | None, timings: Timings) -> Result:
    session = lane.session
    return Result(
        finish=finish,
        stop_string=stop_string,
        reasoning=session.reasoning,
        content=session.content,
        token_ids=tuple(session.token_ids),
        prompt_tokens=lane.prompt_tokens,
        cached_tokens=lane.reused,
        completion_tokens=len(session.token_ids),
        reasoning_tokens=session.reasoning_tokens,
        timings=timings,
        seed=lane.request.params.seed,
        lane=lane.index,
        prompt_ids=lane.request.prompt_ids,
        logprobs=tuple(lane.records),
        calls=tuple(session.calls),
        tool_report=session.tool_report,
        scores=lane.scores,
    )


def empty_result(request: Request, finish: FinishReason) -> Result:
    """The result of a request that generated nothing."""
    prompt = len(request.prompt_ids)
    return Result(
        finish=finish,
        stop_string=None,
        reasoning="",
        content="",
        token_ids=(),
        prompt_tokens=prompt,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        timings=Timings(prompt_n=prompt),
        seed=request.params.seed,
        prompt_ids=request.prompt_ids,
    )
