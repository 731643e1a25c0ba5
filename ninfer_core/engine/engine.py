"""The facade frontends use: prepares requests off the loop, bounds them, and hands them to the engine thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from ninfer_core.api import (
    ApiError,
    ChatJob,
    ContextLengthExceeded,
    Done,
    ModelInfo,
    OptionValues,
    Preset,
    PromptFormat,
    RawJob,
    SamplingRequest,
    Score,
    Slot,
    Started,
    Unavailable,
)
from ninfer_core.engine.capacity import Capacity, CapacityUnit, Seat, returned_on_failure
from ninfer_core.engine.generation import LocalGeneration
from ninfer_core.engine.ledger import LoadFacts, MemoryLedger
from ninfer_core.engine.publisher import empty_result
from ninfer_core.engine.request import OutputBudget, Request, output_budget
from ninfer_core.engine.scoring import Judges
from ninfer_core.engine.thinking import ThinkingBudget, plan_budget
from ninfer_core.engine.worker import Worker
from ninfer_core.errors import QueueTimeout
from ninfer_core.kv.prefix import Prefix
from ninfer_core.sampling.params import SamplingParams, post_thinking_by_default, resolve, resolve_post_thinking
from ninfer_core.text.prompt import PreparedPrompt, PromptBuilder

T = TypeVar("T")
STOP_CHARACTERS = 16_384
TOKENIZE_CHARACTERS = 4 << 20  # of a text whose token ids are asked for
FEW_TOKENS = 1000  # are spelled out on the event loop
THREADS = 2  # that prepare generations; as many for what needs no model
SWITCH_SECONDS = 1e-4
"""The default of 5 ms is what the event loop waits for the interpreter beside a busy engine thread, and the reverse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLimits:
    """What bounds a request; fixed at start."""

    max_context: int  # tokens
    max_concurrency: int
    max_pending: int
    pending_timeout_seconds: float
    pool_pages: int
    default_max_tokens: int | None
    default_thinking_budget: int | None
    guidance: tuple[int, ...]  # what closes reasoning whose budget is spent
    lease_growth: bool

    @property
    def share_pages(self) -> int:
        """One lane's share of the KV pool."""
        return self.pool_pages // self.max_concurrency


class LocalEngine:
    """An ``api.Engine`` in this process. Its coroutines run on the event loop, preparation on a thread beside it."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        format: PromptFormat,
        prompts: PromptBuilder,
        worker: Worker,
        limits: EngineLimits,
        options: OptionValues,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self.format = format
        self.limits = limits
        self.worker = worker
        self._prompts = prompts
        self._options = options
        self._close = close
        self._ids = itertools.count(1)
        self.capacity = Capacity(limits.max_concurrency + limits.max_pending)
        self.counting = Capacity(limits.max_concurrency + limits.max_pending)
        self.rejected = 0  # generation requests refused before they were accepted
        self.memory: MemoryLedger | None = None  # known when it is warm
        self.load_facts: LoadFacts | None = None
        self._ready_at: float | None = None  # monotonic seconds
        self._preparing = ThreadPoolExecutor(THREADS, thread_name_prefix="ninfer-prepare")
        self._judges = Judges(
            prepare=self._prepare_judgement,
            enter=self._enter_judgement,
            nudge=worker.queue.nudge,
            capacity=self.capacity,
            lanes=limits.max_concurrency,
        )
        self._hosting = ThreadPoolExecutor(THREADS, thread_name_prefix="ninfer-host")

    # ------------------------------------------------------------------ life

    @property
    def failed(self) -> str | None:
        """The class of an engine-wide failure, or None."""
        return self.worker.failed

    @property
    def uptime_seconds(self) -> float:
        """Since ``start``."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

    def start(self, loop: asyncio.AbstractEventLoop, *, on_failed: Callable[[], None] | None = None) -> None:
        """Start the engine thread; ``on_failed`` is called on the loop after an engine-wide failure."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        self.worker.outbox.loop = loop
        if on_failed is not None:
            self.worker.on_failed = lambda: _call_on(loop, on_failed)
        self._ready_at = time.monotonic()
        self.worker.start()

    def stop(self, error: ApiError | None = None) -> None:
        """Refuse new requests and end every running and queued one with ``error`` at the next boundary."""
        self.worker.queue.close(error or Unavailable(message="The server is stopping."))

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the engine thread; False when it is still running after ``timeout`` seconds."""
        ended = self.worker.join(timeout)
        if ended:
            for threads in (self._preparing, self._hosting):
                threads.shutdown(wait=False, cancel_futures=True)
            self._close()
        return ended

    # ------------------------------------------------------------------ requests

    async def chat(self, job: ChatJob) -> LocalGeneration:
        return await self._submit(job, lambda: self._prompts.chat(job))

    async def complete(self, job: RawJob) -> LocalGeneration:
        return await self._submit(job, lambda: self._prompts.raw(job))

    async def score(self, jobs: Sequence[ChatJob], tokens: Sequence[int]) -> list[Score]:
        if not jobs:
            return []
        with self._refusing():
            first = Seat(self._take_place())
        asked = [replace(job, max_tokens=1, scored=tuple(tokens)) for job in jobs]
        return await self._judges.score(asked, first)

    async def _prepare_judgement(self, job: ChatJob) -> PreparedPrompt:
        with self._refusing(job):
            prepared = await self._prepare(lambda: self._prompts.chat(job))
            self._check_length(prepared)
            return prepared

    def _enter_judgement(
        self, job: ChatJob, prepared: PreparedPrompt, seat: Seat, prefix: Prefix | None
    ) -> LocalGeneration:
        with self._refusing(job), returned_on_failure(seat.take()):
            return self._enter(job, prepared, seat, self._deadline(), prefix)

    def first_token(self, text: str) -> int:
        return self._prompts.first_token(text)

    def slots(self) -> tuple[Slot, ...]:
        at_work = {one.lane: one for one in self.worker.snapshot.running}
        slots = []
        for lane in range(self.limits.max_concurrency):
            one = at_work.get(lane)
            slots.append(
                Slot(index=lane)
                if one is None
                else Slot(
                    index=lane, is_processing=True, prompt_tokens=one.prompt_tokens, cached_tokens=one.reused_tokens
                )
            )
        return tuple(slots)

    async def render(self, job: ChatJob) -> str:
        return await self._host(lambda: self._prompts.render(job))

    async def count(self, job: ChatJob) -> int:
        prepared = await self._host(lambda: self._prompts.chat(job))
        return len(prepared.ids)

    async def tokenize(self, content: str, *, parse_special: bool = True, add_special: bool = False) -> list[int]:
        if len(content) > TOKENIZE_CHARACTERS:
            text = f"'content' holds {len(content)} characters; this server takes {TOKENIZE_CHARACTERS}."
            raise ApiError("invalid_value", text, param="content")
        tokenizer = self.format.tokenizer
        encode = tokenizer.encode_with_control if parse_special else tokenizer.encode
        ids = await self._host(lambda: encode(content))
        return [self.format.bos_id, *ids] if add_special and self.format.bos_id is not None else ids

    async def detokenize(self, token_ids: Sequence[int], *, counted: bool = False) -> str:
        tokenizer = self.format.tokenizer

        def spell() -> str:
            for at, token in enumerate(token_ids):
                if not 0 <= token < tokenizer.size:
                    raise ApiError(
                        "invalid_token",
                        f"tokens[{at}] is {token}; this model's token ids go from 0 to {tokenizer.size - 1}.",
                        param=f"tokens[{at}]",
                    )
            return b"".join(map(tokenizer.token_bytes, token_ids)).decode("utf-8", "replace")

        if counted:
            return await self._host(spell)
        return spell() if len(token_ids) <= FEW_TOKENS else await self._on(self._hosting, spell)

    def token_bytes(self, token_id: int) -> bytes:
        return self.format.tokenizer.token_bytes(token_id)

    async def _host(self, work: Callable[[], T]) -> T:
        """``work`` that needs no model: bounded by itself and on its own threads, so that it cannot hold up the
        preparation of a generation. Overloaded."""
        unit = self.counting.acquire()
        try:
            return await self._on(self._hosting, work)
        finally:
            unit.done("engine")
            unit.done("consumer")

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def _submit(self, job: ChatJob | RawJob, build: Callable[[], PreparedPrompt]) -> LocalGeneration:
        with self._refusing():
            unit = self._take_place()
            deadline = self._deadline()
            with returned_on_failure(unit):
                return self._enter(job, await self._prepare(build), unit, deadline)

    @contextlib.contextmanager
    def _refusing(self, judged: ChatJob | None = None) -> Iterator[None]:
        """Counts what is refused before it is accepted, and says which of several it was."""
        try:
            yield
        except ApiError as error:
            self.rejected += 1
            if judged is not None and error.status == 400 and judged.messages:
                error.param = judged.messages[-1].place or error.param
            raise
        except Exception:
            self.rejected += 1
            raise

    def _take_place(self) -> CapacityUnit:
        closed = self.worker.queue.closed_with
        if closed is not None:
            raise closed
        return self.capacity.acquire()

    def _deadline(self) -> float:
        return time.monotonic() + self.limits.pending_timeout_seconds

    async def _prepare(self, build: Callable[[], PreparedPrompt]) -> PreparedPrompt:
        try:
            return await asyncio.wait_for(self._on(self._preparing, build), self.limits.pending_timeout_seconds)
        except TimeoutError:
            raise QueueTimeout from None

    def _enter(
        self,
        job: ChatJob | RawJob,
        prepared: PreparedPrompt,
        unit: CapacityUnit | Seat,
        deadline: float,
        prefix: Prefix | None = None,
    ) -> LocalGeneration:
        """Hand a prepared request to the engine thread. ``prefix``: what its group begins with."""
        request = self._request(job, prepared, deadline, unit, prefix)
        if job.max_tokens == 0:
            _answer_empty(request)
        else:
            self.worker.queue.submit(request)
        assert request.generation is not None
        return request.generation

    def _request(
        self,
        job: ChatJob | RawJob,
        prepared: PreparedPrompt,
        deadline: float,
        unit: CapacityUnit | Seat,
        prefix: Prefix | None,
    ) -> Request:
        self._check_length(prepared)
        _check_stops(job.stops)
        params = resolve(job.sampling, self._preset(prepared), self._options)
        budget = self._budget(job, len(prepared.ids))
        generation = LocalGeneration(sampling=params.describe(), max_tokens=budget.tokens, unit=unit)
        return self._assemble(job, prepared, params, budget, deadline, generation, prefix)

    def _check_length(self, prepared: PreparedPrompt) -> None:
        prompt = len(prepared.ids)
        if prompt > self.limits.max_context:
            raise ContextLengthExceeded(prompt, self.limits.max_context)
        if prompt == 0:
            raise ApiError("invalid_prompt", "The prompt is empty; it needs at least one token.", param="prompt")

    def _assemble(
        self,
        job: ChatJob | RawJob,
        prepared: PreparedPrompt,
        params: SamplingParams,
        budget: OutputBudget,
        deadline: float,
        generation: LocalGeneration | None,
        prefix: Prefix | None = None,
    ) -> Request:
        return Request(
            id=next(self._ids),
            post_params=self._post_params(job, prepared, params),
            budget=self._thinking_budget(job, prepared, budget),
            logprobs=job.logprobs,
            prompt_ids=tuple(prepared.ids),
            tool_texts=prepared.tool_texts,
            reasoning=prepared.reasoning,
            in_reasoning=prepared.in_reasoning,
            tools=prepared.tools,
            scored=job.scored,
            raw=isinstance(job, RawJob),
            params=params,
            stop_ids=frozenset() if job.ignore_eos else self.format.stop_ids,
            stops=job.stops,
            limit=budget.tokens,
            limit_finish=budget.finish,
            want_progress=job.want_progress,
            deadline=deadline,
            submitted=time.monotonic(),
            generation=generation,
            transport_id=job.request_id,
            protocol=job.protocol,
            asked_effort=job.effort if isinstance(job, ChatJob) else None,
            prefix=prefix,
        )

    def warm_up(self) -> None:
        """Run one short request through every part of the engine, on the calling thread, before ``start``."""
        self.worker.run_alone(self.unheard(RawJob(prompt=((0,),), ignore_eos=True, max_tokens=3)))

    def unheard(self, job: RawJob) -> Request:
        """A request nobody listens to, for the calling thread before ``start``: warm-up, measurements."""
        prepared = self._prompts.raw(job)
        params = resolve(job.sampling, Preset(temperature=1.0), self._options)
        room = self.limits.max_context - len(prepared.ids) + 1
        budget = OutputBudget(room if job.max_tokens is None else min(job.max_tokens, room), "output_limit")
        return self._assemble(job, prepared, params, budget, time.monotonic() + 3600, None)

    def _post_params(
        self, job: ChatJob | RawJob, prepared: PreparedPrompt, params: SamplingParams
    ) -> SamplingParams | None:
        """The answer's sampler of a thinking request that has one of its own."""
        asked = job.post_thinking if isinstance(job, ChatJob) else None
        if prepared.reasoning is None or not prepared.thinking:
            return None
        if asked is None and not post_thinking_by_default(self._options):
            return None
        return resolve_post_thinking(asked or SamplingRequest(), self.format, self._options, params.seed)

    def _thinking_budget(
        self, job: ChatJob | RawJob, prepared: PreparedPrompt, output: OutputBudget
    ) -> ThinkingBudget | None:
        """The cap of a request that thinks; others have none, whatever they send."""
        if not isinstance(job, ChatJob) or prepared.reasoning is None or not prepared.thinking:
            return None
        tokens = job.thinking_budget if job.thinking_budget is not None else self.limits.default_thinking_budget
        return None if tokens is None else plan_budget(tokens, output.tokens, self.limits.guidance)

    def _preset(self, prepared: PreparedPrompt) -> Preset:
        thinking = self.format.thinking_preset
        return thinking if prepared.thinking and thinking is not None else self.format.preset

    def _budget(self, job: ChatJob | RawJob, prompt: int) -> OutputBudget:
        return output_budget(
            prompt=prompt,
            requested=job.max_tokens,
            max_context=self.limits.max_context,
            share_pages=self.limits.pool_pages if self.limits.lease_growth else self.limits.share_pages,
            default=None if job.max_tokens_is_open else self.limits.default_max_tokens,
        )


def _check_stops(stops: Sequence[str]) -> None:
    """Stop strings are matched on the engine's thread, which everybody shares."""
    held = sum(map(len, stops))
    if held > STOP_CHARACTERS:
        text = f"The stop strings hold {held} characters; this server takes {STOP_CHARACTERS} in all."
        raise ApiError("invalid_value", text, param="stop")


def _answer_empty(request: Request) -> None:
    """A request for no output: prepared and counted, never given a lane."""
    generation = request.generation
    assert generation is not None
    generation.deliver(Started(prompt_tokens=len(request.prompt_ids), reused_tokens=0))
    generation.deliver(Done(result=empty_result(request, "output_limit")))


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
