"""A Chat Completions body as it arrives, and what becomes of each field.

Optional members accept null as absent, except where the contract says otherwise. JSON that reaches the prompt (tool
definitions, arguments of earlier calls) is kept as it was received.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Raw, Struct

from ninfer_core.api.fields import Checked, Ignored, Offence, Only, Used, empty, equal, every_member, left_out
from ninfer_core.api.http import invalid_value
from ninfer_core.api.raw import ResponseFormat, unconstrained

from ..values import (
    CONSTRAINED,
    SEED,
    Count,
    Limit,
    Penalty,
    PostThinking,
    Stops,
    StopString,
    StreamOptions,
    Temperature,
    Unit,
)

MEDIA = "`vision_disabled` while the server reads text only; its form and `detail` are checked before"


class MediaSource(Struct):
    url: Annotated[str, Used("where the media lies")]
    detail: Annotated[str | None, Used("auto, high or low; `--lenient-image-detail` reads any other as auto")] = None


class PartIn(Struct):
    """One content part; ``type`` decides which member counts."""

    type: Annotated[str, Used("text; refusal (assistant); image_url (user, tool); video_url (user)")]
    text: Annotated[str | None, Used("of a text")] = None
    refusal: Annotated[str | None, Used("of a refusal, which reads as text")] = None
    image_url: Annotated[str | MediaSource | None, Used(MEDIA)] = None
    video_url: Annotated[str | MediaSource | None, Used(MEDIA)] = None


class FunctionIn(Struct):
    """What an assistant turn called. Legacy history has it as the message's own ``function_call``."""

    name: Annotated[str, Used("a tool's name")]
    arguments: Annotated[Raw, Used("a text that holds a JSON object, or the object; empty is `{}`")] = Raw(b'""')


class CustomIn(Struct):
    """A free-form tool call: its input is one text."""

    name: Annotated[str, Used("a tool's name")]
    input: Annotated[str, Used("any text")]


class ToolCallIn(Struct):
    id: Annotated[str | None, Used("what the result names")] = None
    type: Annotated[str, Used("function or custom")] = "function"
    function: Annotated[FunctionIn | None, Used("of a function")] = None
    custom: Annotated[CustomIn | None, Used("of a custom tool")] = None


class MessageIn(Struct):
    role: Annotated[str, Used("system, developer, user, assistant, tool or function")]
    content: Annotated[str | list[PartIn] | None, Used("a text or parts; null in an assistant turn")] = None
    name: Annotated[str | None, Used("the function's name of a function result; without effect in a tool result")] = (
        None
    )
    tool_calls: Annotated[list[ToolCallIn] | None, Used("of an assistant turn")] = None
    tool_call_id: Annotated[str | None, Used("of a tool result: the call it answers")] = None
    function_call: Annotated[FunctionIn | None, Used("of an assistant turn, the legacy form")] = None
    reasoning_content: Annotated[str | None, Used("of an assistant turn")] = None
    reasoning: Annotated[str | None, Used("the same")] = None
    refusal: Annotated[str | None, Used("of an assistant turn; follows its content")] = None
    audio: Annotated[Any, Only(left_out, "", "Audio is neither read nor generated")] = None


class FunctionTool(Struct):
    name: Annotated[str, Used("1 to 128 letters, digits and `_ - . : /`")]
    description: Annotated[str | None, Used("any text")] = None
    parameters: Annotated[Raw, Used("a JSON schema; the types of its properties say how arguments are read")] = Raw(
        b"null"
    )
    strict: Annotated[bool | None, Used("advisory: arguments are not constrained")] = None


class CustomFormat(Struct):
    type: Annotated[str, Used("text")] = "text"


class CustomTool(Struct):
    name: Annotated[str, Used("as a function's")]
    description: Annotated[str | None, Used("any text")] = None
    format: Annotated[CustomFormat | None, Used("type text; a grammar is `custom_tool_format_not_supported`")] = None


class ToolIn(Struct):
    type: Annotated[str, Used("function or custom; others are `tool_type_not_supported`")]
    function: Annotated[FunctionTool | None, Used("of a function")] = None
    custom: Annotated[CustomTool | None, Used("of a custom tool")] = None


class Named(Struct):
    name: Annotated[str, Used("a declared tool")]


class AllowedTool(Struct):
    type: Annotated[str, Used("function or custom")]
    function: Annotated[Named | None, Used("of a function")] = None
    custom: Annotated[Named | None, Used("of a custom tool")] = None


class AllowedTools(Struct):
    mode: Annotated[str, Used("auto or required")]
    tools: Annotated[list[AllowedTool], Used("declared tools; required takes one")]


class ToolChoice(Struct):
    type: Annotated[str, Used("function, custom or allowed_tools")]
    function: Annotated[Named | None, Used("forces this call")] = None
    custom: Annotated[Named | None, Used("offers this tool alone")] = None
    allowed_tools: Annotated[AllowedTools | None, Used("offers these tools alone")] = None


def _medium(value: str, place: str) -> Offence | None:
    if value not in ("low", "medium", "high"):
        raise invalid_value(place, value, "low, medium or high")
    return None if value == "medium" else (place, value)


def _no_choice(value: str | dict[str, Any], place: str) -> Offence | None:
    return None if value in ("none", "auto") else (place, value)


class ChatBody(Struct, kw_only=True):
    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored("metadata", "user", "safety_identifier", why="labels of the client's own"),
        Ignored("service_tier", "prompt_cache_key", "prompt_cache_retention", why="hints to a hosted service"),
        Ignored("any other name", why="unknown fields are skipped"),
    )

    messages: Annotated[Annotated[list[MessageIn], Meta(min_length=1)], Used("at least one")]
    model: Annotated[str | None, Used("the public model id; left out, null or empty: the loaded model")] = None
    stream: Annotated[bool | None, Used("true: an event stream")] = None
    stream_options: Annotated[StreamOptions | None, Used("an object")] = None
    max_completion_tokens: Annotated[Limit | None, Used("0 and up; -1: no limit; wins over `max_tokens`")] = None
    max_tokens: Annotated[Limit | None, Used("the same; 0 reads the prompt and generates nothing")] = None
    stop: Annotated[StopString | Stops | None, Used("a text, or up to four; they act in reasoning and answer")] = None
    # null is refused: the contract takes a boolean only
    ignore_eos: Annotated[bool, Used("true: run through the model's own stop tokens")] = False

    temperature: Annotated[Temperature | None, Used("0 to 2")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    top_k: Annotated[Count | None, Used("0 and up; 0, and above 20, is 20")] = None
    min_p: Annotated[Unit | None, Used("0 to 1")] = None
    presence_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    frequency_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    seed: Annotated[int | None, Used(SEED)] = None
    logprobs: Annotated[bool | None, Used("true: a record of each token of the answer")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Used("0 to 20, beside `logprobs`: the likeliest tokens of each record"),
    ] = None
    post_thinking: Annotated[PostThinking | None, Used("the answer's own sampler; `{}`: the preset")] = None

    reasoning_effort: Annotated[
        str | None, Used("none, minimal, low, medium, high, xhigh, max; default and auto: the server's")
    ] = None
    enable_thinking: Annotated[bool | None, Used("true or false")] = None
    preserve_thinking: Annotated[bool | None, Used("true or false")] = None
    thinking_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None, Used("1 and up: tokens after which reasoning is closed")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Used("variables of the template; where a field has the value too, both agree")
    ] = None
    graft: Annotated[str | None, Only(left_out, "", "No prompt graft of that name is loaded", "unknown_graft")] = None

    timings_per_token: Annotated[bool | None, Used("true: timings on every chunk")] = None
    return_progress: Annotated[bool | None, Used("true: progress chunks while a streamed request's prompt is read")] = (
        None
    )

    tools: Annotated[list[Raw] | None, Used("function and custom tools")] = None
    tool_choice: Annotated[
        str | ToolChoice | None, Used("auto, none, required (of one tool), a tool, or allowed tools")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Used("false: the first call of the answer alone")] = None
    functions: Annotated[
        list[Any] | None, Only(empty, "empty", "Legacy functions are not offered; declare 'tools'")
    ] = None
    function_call: Annotated[
        str | dict[str, Any] | None,
        Only(_no_choice, "none or auto", "Legacy functions are not offered; use 'tool_choice'"),
    ] = None
    response_format: Annotated[ResponseFormat | None, Only(unconstrained, "text", CONSTRAINED)] = None

    n: Annotated[int | None, Only(equal(1), "1", "One request gives one choice")] = None
    modalities: Annotated[list[str] | None, Only(every_member(equal("text")), "text", "Only text is generated")] = None
    audio: Annotated[dict[str, Any] | None, Checked("audio is asked for by `modalities`")] = None
    prediction: Annotated[dict[str, Any] | None, Checked("the answer is the same with and without it")] = None
    verbosity: Annotated[str | None, Only(_medium, "medium", "The length of answers is not steered")] = None
    store: Annotated[bool | None, Only(equal(False), "false", "Chat Completions are not stored")] = None
    repetition_penalty: Annotated[float | None, Only(equal(1), "1", "No repetition penalty is applied")] = None
    logit_bias: Annotated[dict[str, float] | None, Only(every_member(equal(0)), "0", "No logit bias is applied")] = None
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None, Only(every_member(equal(None)), "null", "The media processor takes no options")
    ] = None
    web_search_options: Annotated[Any, Only(left_out, "", "The web is not searched")] = None
    moderation: Annotated[Any, Only(left_out, "", "Nothing is moderated")] = None

    # constrained decoding of other servers; json_schema is llama.cpp's
    grammar: Annotated[Any, Only(equal(""), "empty", CONSTRAINED)] = None
    structured_outputs: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_json: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_regex: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_choice: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    guided_grammar: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
    json_schema: Annotated[Any, Only(left_out, "", CONSTRAINED)] = None
