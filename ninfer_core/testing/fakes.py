"""An engine without a model, for frontends: it says what it is told to, in the pieces it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ninfer_core.api import (
    ApiError,
    Called,
    ChatJob,
    Delta,
    Done,
    Engine,
    Event,
    GeneratedCall,
    Message,
    ModelInfo,
    NotFound,
    OptionValues,
    Part,
    Progress,
    RawJob,
    Result,
    Score,
    Slot,
    Started,
    Timings,
    TokenLogprob,
    ToolReport,
)
from ninfer_core.api.http import Body
from ninfer_core.api.jobs import Channel, FinishReason

INFO = ModelInfo(
    id="fake",
    path="/models/fake.ninfer",
    created=1_700_000_000,
    architecture="FakeForCausalLM",
    max_context=4096,
    trained_context=8192,
    vocab_tokens=256,
    hidden_size=64,
    parameters=1_000_000,
    weight_bytes=2_000_000,
    weight_formats=("bf16",),
    max_concurrency=2,
    has_chat=True,
    thinks_by_default=False,
    sampling={
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": None,
    },
)
TIMINGS = Timings(cache_n=3, prompt_n=2, prompt_ms=4.0, predicted_n=2, predicted_ms=10.0)


class FakeEngine:
    """Implements ``api.Engine``: one byte of text is one token, every job gives the same output.

    ``pieces``: what comes out, in order: a text of the content channel, a ``(channel, text)`` pair, or a call, whose
    arguments stand for its markup; a job of one call gets the first. ``refusal`` is raised before any output,
    ``failure`` after the last piece. ``pause_seconds`` passes before each event. ``jobs`` holds what was submitted,
    ``cancelled`` the generations that were left before their end. A job that asks for log probabilities gets one record
    per byte of content, -0.25 each, its rivals the bytes that follow it. ``scores``: log probabilities of tokens by a
    word of the job's text; other tokens have -10.
    """

    def __init__(
        self,
        *,
        info: ModelInfo = INFO,
        pieces: Sequence[str | tuple[Channel, str] | GeneratedCall] = ("OK", "."),
        finish: FinishReason = "stop_token",
        stop_string: str | None = None,
        prompt_tokens: int = 5,
        cached_tokens: int = 3,
        timings: Timings = TIMINGS,
        refusal: ApiError | None = None,
        failure: ApiError | None = None,
        pause_seconds: float = 0.0,
        scores: Mapping[str, Mapping[int, float]] | None = None,
        slots: Sequence[Slot] = (Slot(index=0), Slot(index=1)),
    ) -> None:
        self.info = info
        self.scores = scores or {}
        self._slots = tuple(slots)
        self.pieces: list[tuple[Channel, str] | GeneratedCall] = [
            ("content", piece) if isinstance(piece, str) else piece for piece in pieces
        ]
        self.finish = finish
        self.stop_string = stop_string
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.timings = timings
        self.refusal = refusal
        self.failure = failure
        self.pause_seconds = pause_seconds
        self.jobs: list[ChatJob | RawJob] = []
        self.cancelled: list[FakeGeneration] = []
        self.running = 0

    async def chat(self, job: ChatJob) -> FakeGeneration:
        return self._submit(job)

    async def complete(self, job: RawJob) -> FakeGeneration:
        return self._submit(job)

    async def score(self, jobs: Sequence[ChatJob], tokens: Sequence[int]) -> list[Score]:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.extend(jobs)
        await asyncio.sleep(self.pause_seconds)
        if self.failure is not None:
            raise self.failure
        return [self._score(job, tokens) for job in jobs]

    def _score(self, job: ChatJob, tokens: Sequence[int]) -> Score:
        text = "".join(message.text for message in job.messages)
        told = next((told for word, told in self.scores.items() if word in text), {})
        logprobs = tuple(told.get(token, -10.0) for token in tokens)
        return Score(logprobs=logprobs, prompt_tokens=self.prompt_tokens)

    def first_token(self, text: str) -> int:
        return text.encode()[0]

    def slots(self) -> tuple[Slot, ...]:
        return self._slots

    async def render(self, job: ChatJob) -> str:
        return "".join(f"[{message.role}]{message.text}" for message in job.messages) + "[assistant]"

    async def count(self, job: ChatJob) -> int:
        return len((await self.render(job)).encode())

    async def tokenize(self, content: str, *, parse_special: bool = True, add_special: bool = False) -> list[int]:
        return list(content.encode())

    async def detokenize(self, token_ids: Sequence[int], *, counted: bool = False) -> str:
        for token in token_ids:
            self.token_bytes(token)
        return bytes(token_ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < 256:
            raise ApiError("invalid_token", f"token {token_id} is not in the vocabulary of 256 tokens")
        return bytes([token_id])

    def result(self, job: ChatJob | RawJob | None = None) -> Result:
        """The end every generation comes to; ``job`` decides what is reported of it."""
        pieces = self.said(job)
        reasoning = "".join(_text(piece) for piece in pieces if _is(piece, "reasoning"))
        content = "".join(_text(piece) for piece in pieces if _is(piece, "content"))
        calls = tuple(piece for piece in pieces if isinstance(piece, GeneratedCall))
        token_ids = tuple("".join(map(_text, pieces)).encode())
        return Result(
            finish=self.finish,
            stop_string=self.stop_string,
            reasoning=reasoning,
            content=content,
            token_ids=token_ids,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=len(token_ids) + (self.finish == "stop_token"),
            reasoning_tokens=len(reasoning.encode()),
            timings=self.timings,
            seed=7,
            prompt_ids=tuple(range(self.prompt_tokens)),
            logprobs=tuple(one for piece in pieces for one in _records(piece, job)),
            calls=calls,
            tool_report=ToolReport(marker_seen=bool(calls), structured_calls=len(calls)),
        )

    def said(self, job: ChatJob | RawJob | None) -> list[tuple[Channel, str] | GeneratedCall]:
        """The pieces this job gets."""
        single = isinstance(job, ChatJob) and job.single_call
        out: list[tuple[Channel, str] | GeneratedCall] = []
        for piece in self.pieces:
            if isinstance(piece, GeneratedCall) and single and any(isinstance(other, GeneratedCall) for other in out):
                continue
            out.append(piece)
        return out

    def events(self, job: ChatJob | RawJob) -> list[Event]:
        out: list[Event] = [Started(prompt_tokens=self.prompt_tokens, reused_tokens=self.cached_tokens)]
        if job.want_progress:
            out.append(
                Progress(
                    total=self.prompt_tokens,
                    cache=self.cached_tokens,
                    processed=self.prompt_tokens,
                    time_ms=4.0,
                    timings=self.timings,
                )
            )
        calls = 0
        for piece in self.said(job):
            ids, records = tuple(_text(piece).encode()), _records(piece, job)
            if isinstance(piece, GeneratedCall):
                out.append(Called(index=calls, call=piece, token_ids=ids, timings=self.timings, logprobs=records))
                calls += 1
            else:
                channel, text = piece
                out.append(Delta(channel=channel, text=text, token_ids=ids, timings=self.timings, logprobs=records))
        out.append(Done(result=self.result(job)))
        return out

    def _submit(self, job: ChatJob | RawJob) -> FakeGeneration:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(job)
        return FakeGeneration(self, job)


class FakeGeneration:
    """One pass through the engine's pieces. ``finished``: the last event was delivered."""

    def __init__(self, engine: FakeEngine, job: ChatJob | RawJob) -> None:
        self.engine = engine
        asked = job.sampling
        self.sampling: Mapping[str, Any] = {
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "top_k": asked.top_k or 20,
            "min_p": asked.min_p or 0.0,
            "presence_penalty": asked.presence_penalty or 0.0,
            "frequency_penalty": asked.frequency_penalty or 0.0,
            "seed": 7 if asked.seed is None else asked.seed,
        }
        self.max_tokens = engine.info.max_context if job.max_tokens is None else job.max_tokens
        self.finished = False
        self._events = iter(engine.events(job))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(self.engine.pause_seconds)
        event = next(self._events, None)
        if event is None:
            raise StopAsyncIteration
        if isinstance(event, Done):
            self.finished = True
            if self.engine.failure is not None:
                raise self.engine.failure
        return event

    async def result(self) -> Result:
        async for event in self:
            if isinstance(event, Done):
                return event.result
        raise AssertionError("result() was asked for after the end")

    async def __aenter__(self) -> FakeGeneration:
        self.engine.running += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.engine.running -= 1
        if not self.finished:
            self.engine.cancelled.append(self)


def _text(piece: tuple[Channel, str] | GeneratedCall) -> str:
    return piece.arguments if isinstance(piece, GeneratedCall) else piece[1]


def _is(piece: tuple[Channel, str] | GeneratedCall, channel: Channel) -> bool:
    return not isinstance(piece, GeneratedCall) and piece[0] == channel


def _records(piece: tuple[Channel, str] | GeneratedCall, job: ChatJob | RawJob | None) -> tuple[TokenLogprob, ...]:
    if job is None or job.logprobs is None or _is(piece, "reasoning"):
        return ()
    return tuple(
        TokenLogprob(
            token_id=byte,
            logprob=-0.25,
            top=tuple(((byte + rank) % 256, -0.25 - rank) for rank in range(job.logprobs)),
        )
        for byte in _text(piece).encode()
    )


class FakeContext:
    """Implements ``api.FrontendContext`` over one engine; ``extra`` are more of them by name."""

    version = "0.0.0+test"

    def __init__(self, engine: Engine, options: OptionValues | None = None, *, extra: Sequence[Engine] = ()) -> None:
        self.options = options or OptionValues({}, frozenset())
        self._engines = (engine, *extra)
        self.stopped = asyncio.Event()

    def engine(self, model: str | None, *, param: str = "model") -> Engine:
        if not model:
            return self._engines[0]
        for engine in self._engines:
            if engine.info.id == model:
                return engine
        raise NotFound("model_not_found", f"The model {model!r} does not exist.", param=param)

    def engines(self) -> tuple[Engine, ...]:
        return self._engines

    async def ended(self) -> None:
        await self.stopped.wait()

    async def read_chat(self, body: Body) -> tuple[Engine, ChatJob]:
        """The plainest reading of a Chat Completions body in memory: ``model`` and messages of text."""
        assert isinstance(body, bytes)
        try:
            chat = msgspec.json.decode(body, type=_Chat)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError("invalid_json", str(error)) from None
        if not chat.messages:
            raise ApiError("invalid_value", "messages is empty", param="messages")
        messages = tuple(Message(role=m.role, content=(Part(text=m.content),)) for m in chat.messages)
        return self.engine(chat.model), ChatJob(messages=messages)


class _Turn(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class _Chat(msgspec.Struct):
    messages: list[_Turn]
    model: str | None = None


def renamed(name: str, **changes: Any) -> ModelInfo:
    """``INFO`` under another public name."""
    return replace(INFO, id=name, **changes)
