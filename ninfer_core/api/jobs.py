"""Protocol-free requests and what comes back: the border between frontends and the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from .tools import GeneratedCall, Tool, ToolCall, ToolReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of a message. Only text so far; media parts come with the vision residencies.

    ``cache_boundary``: a hint that prompts will begin with everything up to the end of this part. It never changes an
    answer, and has no effect where nothing is kept between requests.
    """

    text: str
    cache_boundary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn. ``place`` names it in the request body, for refusals found later ("messages[2]")."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    place: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRequest:
    """What the client asked for; None is unspecified and takes the process flag, then the model's preset."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0: the widest candidate set, 20
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None  # any signed 64-bit number


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    sampling: SamplingRequest = SamplingRequest()
    max_tokens: int | None = None  # None: the default output limit; 0: no generation
    max_tokens_is_open: bool = False  # the client said "no limit" (-1): never the --default-max-tokens cap
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    want_progress: bool = False  # Progress events during prefill
    logprobs: int | None = None  # None: none; N: each content token's log probability and its N likeliest rivals
    scored: tuple[int, ...] = ()  # tokens whose exact log probability as the first output token is wanted
    request_id: str = ""  # the transport's id, for the log
    protocol: str = ""  # "openai-chat", for the log


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatJob(_Job):
    """A conversation, rendered with the model's template."""

    messages: tuple[Message, ...]
    thinking: bool | None = None  # None: the server's default, then the template's
    effort: str | None = None
    preserve_thinking: bool | None = None
    thinking_budget: int | None = None  # tokens; None: the server's default
    post_thinking: SamplingRequest | None = None  # a second sampler for the answer; its silent fields: the preset's
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefill: bool = False  # the last message is an assistant turn to continue
    tools: tuple[Tool, ...] = ()  # those the model may call, in declaration order; () where the client wants no calls
    forced_tool: str | None = None  # one of them: the answer starts inside a call to it
    single_call: bool = False  # keep the first call of the answer and drop the rest
    cache_boundary: bool = False  # a hint as in ``Part``, for the end of the prompt
    session_key: str | None = None  # 1 to 256 bytes: prompts of one key continue each other; never part of one
    session_read_only: bool = False  # the session may be taken up from, and is left as it was


@dataclass(frozen=True, kw_only=True, slots=True)
class RawJob(_Job):
    """A raw prompt: strings (control-token spellings are those tokens) and token ids, in order."""

    prompt: tuple[str | tuple[int, ...], ...]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp-compatible timings; every rate finite, zero where a duration or count is zero."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    prompt_done_n: int | None = None  # tokens prefilled so far, while the prompt is being processed

    def to_json(self) -> dict[str, int | float]:
        """The wire object; draft members only when drafting happened."""
        spans = self.prompt_n if self.prompt_done_n is None else self.prompt_done_n
        intervals = max(self.predicted_n - 1, 0)
        out: dict[str, int | float] = {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": self.prompt_ms / spans if spans else 0.0,
            "prompt_per_second": 1e3 * spans / self.prompt_ms if self.prompt_ms > 0 else 0.0,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": self.predicted_ms / intervals if intervals else 0.0,
            "predicted_per_second": 1e3 * intervals / self.predicted_ms if self.predicted_ms > 0 else 0.0,
        }
        if self.draft_n:
            out["draft_n"] = self.draft_n
            out["draft_n_accepted"] = self.draft_n_accepted
        return out


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One content token: natural-log probabilities of the distribution it was drawn from, before truncation.

    ``logprob`` is -9999.0 for a token outside its position's 20 likeliest; ``top`` lists (token id, logprob), likeliest
    first, masked tokens left out.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


FinishReason = Literal["stop_token", "stop_string", "output_limit", "context_capacity", "cancelled"]
Channel = Literal["reasoning", "content"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """Admission committed the reuse choice; once, before any output."""

    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Prompt processing: ``processed`` counts from the prompt's start, reused tokens included."""

    total: int
    cache: int
    processed: int
    time_ms: float
    timings: Timings


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Text a client may see. ``token_ids`` are the tokens committed since the previous event, hidden ones included."""

    channel: Channel
    text: str
    token_ids: tuple[int, ...]
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()  # of the content tokens whose first byte this text publishes


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """A complete tool call. The text of its markup is published nowhere else; ``token_ids`` as in ``Delta``."""

    index: int  # of the calls of this answer, from 0
    call: GeneratedCall
    token_ids: tuple[int, ...]
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()  # of content tokens not reported so far, the markup's among them


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A finished generation. ``completion_tokens`` counts a withheld stop token too."""

    finish: FinishReason
    stop_string: str | None
    reasoning: str
    content: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    timings: Timings
    seed: int
    prompt_ids: tuple[int, ...] = ()
    lane: int = 0  # the lane that ran it
    logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[GeneratedCall, ...] = ()
    tool_report: ToolReport = field(default_factory=ToolReport)
    scores: tuple[float, ...] = ()  # one for each of the job's ``scored``


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What the model thinks of some first tokens of its answer. ``logprobs``: natural logarithms, over the whole
    vocabulary at temperature 1, whatever the server's sampler is."""

    logprobs: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int = 0  # of these: processed for another judgement of the same call


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotCheckpoint:
    """Where a later request can take a kept session up: the first ``frontier`` tokens of it."""

    frontier: int
    digest: str  # of those tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One place where a conversation lives: it is being answered there, is kept there, or nothing is."""

    index: int
    is_processing: bool = False
    prompt_tokens: int = 0  # of the running request, or the depth of what is kept
    cached_tokens: int = 0  # of these: reused, or kept
    digest: str | None = None  # of the tokens kept; None: nothing is kept
    checkpoints: tuple[SlotCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The last event of a generation that did not fail; a failure raises ApiError from the iteration instead."""

    result: Result
    token_ids: tuple[int, ...] = ()  # committed since the previous event
    logprobs: tuple[TokenLogprob, ...] = ()  # of content tokens no text was published for


Event = Started | Progress | Delta | Called | Done


class Generation(Protocol):
    """One running request. Leaving the ``async with`` block before the end cancels it."""

    sampling: Mapping[str, Any]  # the resolved sampler: temperature, top_p, top_k, min_p, penalties, seed
    max_tokens: int  # the resolved output limit

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def result(self) -> Result:
        """Drain the events and return the end; raises ApiError when the request failed."""

    async def __aenter__(self) -> Generation: ...

    async def __aexit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """Facts of the served model for ``/v1/models``, ``/props`` and the log."""

    id: str  # the public name
    path: str
    created: int  # seconds since the epoch
    architecture: str
    max_context: int
    trained_context: int
    vocab_tokens: int
    hidden_size: int
    parameters: int
    weight_bytes: int
    weight_formats: tuple[str, ...]
    max_concurrency: int
    has_chat: bool
    shows_tools: bool = True  # the chat template has a place for them
    thinks_by_default: bool
    longest_token: int | None = None  # bytes of text that one token stands for, at most; None: no such bound
    sampling: Mapping[str, Any] = field(default_factory=dict)  # of a silent request; seed None: drawn anew each time
    default_max_tokens: int | None = None  # None: derived from the prompt and the lane's share
    speculative: bool = False  # something drafts


class Engine(Protocol):
    """One loaded model, as frontends see it. Used from the event loop."""

    info: ModelInfo

    async def chat(self, job: ChatJob) -> Generation:
        """Prepare and submit; every refusal is an ApiError raised here, before any output."""

    async def complete(self, job: RawJob) -> Generation: ...

    async def score(self, jobs: Sequence[ChatJob], tokens: Sequence[int]) -> list[Score]:
        """What the model thinks of each of ``tokens`` as the first one of each job's answer. Nothing is generated.

        All are prepared before the first one runs. As many run at a time as there are lanes and free places; each waits
        its turn like a request of its own, and what all prompts begin with is processed once. The first refusal ends
        them all, and its ``param`` is the place of that job's last message.
        """

    def first_token(self, text: str) -> int:
        """The token an answer that begins with this text begins with."""

    def slots(self) -> tuple[Slot, ...]:
        """Every slot, as of the engine's last boundary; neither asks nor waits for it."""

    async def render(self, job: ChatJob) -> str:
        """The prompt a chat request renders to, as text.

        This, ``count`` and ``tokenize`` share a capacity of their own, as large as that of generations: Overloaded.
        """

    async def count(self, job: ChatJob) -> int:
        """The tokens of that prompt."""

    async def tokenize(self, content: str, *, parse_special: bool = True, add_special: bool = False) -> list[int]: ...

    async def detokenize(self, token_ids: Sequence[int], *, counted: bool = False) -> str:
        """``counted``: a request of its own, bounded as ``tokenize`` is; else a part of a generation's answer."""

    def token_bytes(self, token_id: int) -> bytes: ...
