"""A Chat Completions body as it arrives. Fields without effect here (metadata, user, service tier, ...) are not listed:
unknown members are skipped by the decoder.

Optional members accept null as absent, except where the contract says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Temperature = Annotated[float, Meta(ge=0, le=2)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=-1)]  # -1: no limit
StopString = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[StopString], Meta(max_length=4)]


class PartIn(Struct):
    """One content part; ``type`` decides which member counts."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionIn(Struct):
    """What an assistant turn called. Legacy history has it as the message's own ``function_call``."""

    name: str
    arguments: str | dict[str, Any] = ""


class CustomIn(Struct):
    """A free-form tool call: its input is one text."""

    name: str
    input: str


class ToolCallIn(Struct):
    id: str | None = None
    type: str = "function"
    function: FunctionIn | None = None
    custom: CustomIn | None = None


class MessageIn(Struct):
    role: str
    content: str | list[PartIn] | None = None
    name: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None
    function_call: FunctionIn | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class ResponseFormat(Struct):
    type: str


class PostThinking(Struct, forbid_unknown_fields=True):
    """The answer's own sampler: a misspelt member would be silently sampled with the preset, so it is refused."""

    temperature: Temperature | None = None
    top_p: Unit | None = None
    top_k: Count | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None


class ChatBody(Struct):
    messages: Annotated[list[MessageIn], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    stop: StopString | Stops | None = None
    ignore_eos: bool = False  # null is refused: the contract takes a boolean only
    n: int | None = None

    temperature: Temperature | None = None
    top_p: Unit | None = None
    top_k: Count | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    post_thinking: PostThinking | None = None

    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    graft: str | None = None

    timings_per_token: bool | None = None
    return_progress: bool | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    verbosity: str | None = None
    store: bool | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    web_search_options: Any = None
    moderation: Any = None

    # constrained decoding of other servers; json_schema is llama.cpp's
    grammar: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
