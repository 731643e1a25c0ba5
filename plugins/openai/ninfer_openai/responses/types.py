"""A Responses body as it arrives, and what becomes of each field.

Unknown top-level members are refused, and so are unknown members of the objects that configure the answer: a misspelt
one would be silently without effect. Null is absent.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from ninfer_core.api.fields import Checked, Offence, Only, Used, empty, equal, left_out
from ninfer_core.api.http import invalid_value
from ninfer_core.api.raw import ResponseFormat, unconstrained

from ..values import CONSTRAINED, Count, PostThinking, Temperature, Unit

SUMMARIES = ("auto", "concise", "detailed")
HINT = "a hint to a hosted service"
STATE = "Conversations are continued by 'previous_response_id' alone"
MODERATED = "Nothing is moderated"

Name = Annotated[str, Meta(min_length=1)]
Label = Annotated[str, Meta(max_length=64)]
Metadata = Annotated[dict[Label, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class BreakpointIn(Struct):
    mode: Annotated[str, Used("explicit")]
    ttl: Annotated[str | None, Checked("nothing is kept by the clock")] = None


class PartIn(Struct):
    """One content part; ``type`` decides which member counts."""

    type: Annotated[str, Used("input_text, output_text, refusal, input_image, input_video or reasoning_text, by place")]
    text: Annotated[str | None, Used("of a text")] = None
    refusal: Annotated[str | None, Used("of a refusal, which reads as text")] = None
    image_url: Annotated[str | None, Used("of an image: an HTTP(S) address or a data URI; needs vision")] = None
    video_url: Annotated[str | None, Used("of a video: the same")] = None
    detail: Annotated[
        str | None, Used("of an image: auto, high or low; `--lenient-image-detail` reads any other as auto")
    ] = None
    file_id: Annotated[Any, Only(left_out, "", "No files are kept here; send the image itself")] = None
    prompt_cache_breakpoint: Annotated[
        BreakpointIn | None, Used('`{"mode": "explicit"}` on up to four input or result parts')
    ] = None


class SummaryIn(Struct):
    text: Annotated[str, Used("any text")]
    type: Annotated[str | None, Checked("of a summary")] = None


class ItemIn(Struct):
    """One input Item; ``type`` decides which members count. An Item with a role and no type is a message."""

    type: Annotated[str | None, Used("message, reasoning, function_call or function_call_output")] = None
    id: Annotated[str | None, Used("unique in the conversation; made when left out")] = None
    status: Annotated[str | None, Used("any text; a call and its output are completed")] = None
    role: Annotated[str | None, Used("of a message: user, assistant, system or developer")] = None
    content: Annotated[str | list[PartIn] | None, Used("of a message: a text or parts; of reasoning: its raw text")] = (
        None
    )
    phase: Annotated[str | None, Used("of a message: kept, without effect")] = None
    summary: Annotated[list[SummaryIn] | None, Used("of reasoning: kept, without effect")] = None
    encrypted_content: Annotated[str | None, Used("of reasoning: kept, without effect")] = None
    call_id: Annotated[str | None, Used("of a call and of its output: what joins them")] = None
    namespace: Annotated[str | None, Used("of a call; of its output, where it has to be the same")] = None
    name: Annotated[str | None, Used("of a call; of its output, where it has to be the same")] = None
    arguments: Annotated[str | None, Used("of a call: a text that holds a JSON object")] = None
    output: Annotated[str | list[PartIn] | None, Used("of an output: a text, or at least one part")] = None


class FunctionIn(Struct):
    """A function, direct or in a namespace."""

    type: Annotated[str, Used("function")]
    name: Annotated[str, Used("1 to 128 letters, digits and `_ - . : /`")]
    description: Annotated[str | None, Used("any text")] = None
    parameters: Annotated[dict[str, Raw] | None, Used("a JSON schema; top-level types read arguments")] = None
    strict: Annotated[bool | None, Only(equal(False), "false", "Arguments are not constrained to the schema")] = None
    output_schema: Annotated[Any, Only(left_out, "", "Results of calls are not read by a schema")] = None
    defer_loading: Annotated[bool | None, Used("false; a deferred tool is `defer_loading_not_supported`")] = None
    allowed_callers: Annotated[
        list[str] | None, Used("a list with direct; others are `allowed_callers_not_supported`")
    ] = None


class NamespaceIn(Struct):
    type: Annotated[str, Used("namespace")]
    name: Annotated[str, Used("1 to 64 letters, digits, `_` and `-`")]
    tools: Annotated[list[Raw], Used("functions")]
    description: Annotated[str | None, Used("any text; shown with the first of its functions")] = None


class AllowedIn(Struct, omit_defaults=True):
    type: Annotated[str, Used("function")]
    name: Annotated[str | None, Used("a declared function")] = None
    namespace: Annotated[str | None, Used("its namespace")] = None


class ToolChoiceIn(Struct, omit_defaults=True):
    type: Annotated[str, Used("function or allowed_tools")]
    name: Annotated[str | None, Used("of a function: forces a call to it")] = None
    namespace: Annotated[str | None, Used("its namespace")] = None
    mode: Annotated[str | None, Used("of allowed_tools: auto or required")] = None
    tools: Annotated[list[AllowedIn] | None, Used("of allowed_tools: offers these alone; required takes one")] = None


class ReasoningIn(Struct, forbid_unknown_fields=True):
    effort: Annotated[
        str | None, Used("none, minimal, low, medium, high, xhigh, max; default and auto: the server's")
    ] = None
    summary: Annotated[str | None, Used("auto, concise or detailed: a fixed placeholder")] = None
    generate_summary: Annotated[str | None, Used("the same; where both are sent, they agree")] = None
    context: Annotated[Any, Only(left_out, "", "Reasoning has no such option", "reasoning_option_not_supported")] = None
    mode: Annotated[Any, Only(left_out, "", "Reasoning has no such option", "reasoning_option_not_supported")] = None


def _medium(value: str, place: str) -> Offence | None:
    if value not in ("low", "medium", "high"):
        raise invalid_value(place, value, "low, medium or high")
    return None if value == "medium" else (place, value)


class TextIn(Struct, forbid_unknown_fields=True):
    format: Annotated[
        ResponseFormat | None, Only(unconstrained, "of type text", CONSTRAINED, "response_format_not_supported")
    ] = None
    verbosity: Annotated[str | None, Only(_medium, "medium", "The length of answers is not steered")] = None


class StreamOptionsIn(Struct, forbid_unknown_fields=True):
    include_obfuscation: Annotated[bool | None, Checked("no padding is sent")] = None


class CacheOptionsIn(Struct):
    mode: Annotated[str | None, Checked(HINT)] = None
    ttl: Annotated[str | None, Checked(HINT)] = None


class PromptBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the prompt of a Response is made from."""

    model: Annotated[Name, Used("the public model id")]
    input: Annotated[
        str | list[ItemIn] | None,
        Used("a text, or Items; left out or empty only where a previous Response has a user's turn"),
    ] = None
    instructions: Annotated[str | None, Used("a developer's turn before the conversation, for this request alone")] = (
        None
    )
    previous_response_id: Annotated[str | None, Used("a stored Response, whose conversation goes on")] = None
    reasoning: Annotated[ReasoningIn | None, Used("an object")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Used("variables of the template; where a field has the value too, both agree")
    ] = None
    preserve_thinking: Annotated[bool | None, Used("true or false; left out, as in the previous Response")] = None
    tools: Annotated[list[Raw] | None, Used("functions, and namespaces of functions")] = None
    tool_choice: Annotated[
        str | ToolChoiceIn | None, Used("auto, none, required (of one function), a function, or allowed tools")
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Used("true; false where no tool can be called, or with `--lenient-tools`: the first call alone")
    ] = None
    text: Annotated[TextIn | None, Used("an object")] = None
    include: Annotated[list[str] | None, Used("`reasoning.encrypted_content`, `message.output_text.logprobs`")] = None
    truncation: Annotated[str | None, Only(equal("disabled"), "disabled", "No Items are dropped to make room")] = None
    graft: Annotated[str | None, Only(empty, "empty", "No prompt graft is loaded", "unknown_graft")] = None
    conversation: Annotated[Any, Only(left_out, "", STATE)] = None


class CreateBody(PromptBody, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses``."""

    stream: Annotated[bool | None, Used("true: an event stream")] = None
    stream_options: Annotated[StreamOptionsIn | None, Used("an object")] = None
    store: Annotated[bool | None, Used("true (the default): kept for retrieval and continuation")] = None
    max_output_tokens: Annotated[Count | None, Used("0 and up; 0 reads the prompt and generates nothing")] = None
    temperature: Annotated[Temperature | None, Used("0 to 2")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    post_thinking: Annotated[PostThinking | None, Used("the answer's own sampler; `{}`: the preset")] = None
    thinking_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None, Used("1 and up: tokens after which reasoning is closed")
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Used("1 to 20: log probabilities with as many of the likeliest tokens"),
    ] = None
    metadata: Annotated[Metadata | None, Used("up to 16 texts of 512 characters under names of 64; returned")] = None
    max_tool_calls: Annotated[Count | None, Checked("it bounds hosted tools, of which there are none; returned")] = None
    service_tier: Annotated[
        str | None, Only(equal("auto", "default"), "auto or default", "There is one tier of service")
    ] = None
    background: Annotated[bool | None, Only(equal(False), "false", "Responses are made while the client waits")] = None
    client_metadata: Annotated[dict[str, Any] | None, Checked("tracing of the client's own")] = None
    prompt_cache_key: Annotated[str | None, Checked(HINT)] = None
    prompt_cache_options: Annotated[CacheOptionsIn | None, Checked(HINT)] = None
    prompt_cache_retention: Annotated[str | None, Checked(HINT)] = None
    safety_identifier: Annotated[str | None, Checked("a label of the client's own; returned")] = None
    user: Annotated[str | None, Checked("a label of the client's own; returned")] = None
    prompt: Annotated[Any, Only(left_out, "", "No prompt templates are kept")] = None
    context_management: Annotated[Any, Only(left_out, "", "Conversations are not compacted")] = None
    moderation: Annotated[Any, Only(left_out, "", MODERATED)] = None
    access_programs: Annotated[Any, Only(left_out, "", "There are no access programs")] = None
    background_options: Annotated[Any, Only(left_out, "", "Responses are made while the client waits")] = None
    image: Annotated[Any, Only(left_out, "", "Images have no options")] = None


class CountBody(PromptBody, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/responses/input_tokens``."""

    thinking_budget: Annotated[Any, Only(left_out, "", "A count generates nothing")] = None
    personality: Annotated[Any, Only(left_out, "", "There are no personalities")] = None
