"""The bodies of Messages and of its token count, as they arrive.

Optional members accept null as absent. Members of other names are skipped: clients send advisory ones that are not
known yet.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Raw, Struct

from ninfer_core.api.fields import Ignored, Only, Used, empty, left_out

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0)]
StopString = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[StopString], Meta(max_length=32)]
Label = Annotated[str, Meta(min_length=1)]

NO_JSON = Raw(b"null")
"""A JSON member that is not there."""


class Inner(Struct):
    """A block inside a tool result."""

    type: str
    text: str | None = None
    cache_control: Any = None


class Block(Struct):
    """One content block; ``type`` decides which members count."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = NO_JSON
    tool_use_id: str | None = None
    content: str | list[Inner] | dict[str, Any] | None = None
    is_error: bool | None = None
    cache_control: Any = None


class MessageIn(Struct):
    role: str
    content: str | list[Block]


class ThinkingIn(Struct):
    type: Annotated[str, Used("disabled, adaptive or enabled")]
    budget_tokens: Annotated[
        int | None, Used("with enabled, 1024 and up: tokens after which reasoning is closed; `max_tokens` may be less")
    ] = None
    display: Annotated[
        str | None, Used("summarized, or omitted: thinking blocks come empty, their signature holds the text")
    ] = None


class OutputConfig(Struct):
    effort: Annotated[str | None, Used("low, medium, high, xhigh or max; the model's nearest is taken")] = None
    format: Annotated[Any, Only(left_out, "", "Output is not constrained", "response_format_not_supported")] = None


class ToolIn(Struct):
    name: Annotated[str | None, Used("1 to 128 letters, digits and `_` `-` `.` `:` `/`; each name once")] = None
    type: Annotated[str | None, Used("custom, or left out")] = None
    description: Annotated[str | None, Used("a text")] = None
    input_schema: Annotated[Raw, Used("a JSON Schema of type object; required")] = NO_JSON
    input_examples: Annotated[list[Raw] | None, Used("objects, shown to the model with the definition")] = None
    strict: Annotated[bool | None, Used("false")] = None
    defer_loading: Annotated[bool | None, Used("false")] = None
    allowed_callers: Annotated[list[str] | None, Used("a list that holds direct")] = None
    cache_control: Annotated[Any, Used("a hint; see below")] = None


class ToolChoice(Struct):
    type: Annotated[str, Used("auto, none, any or tool")]
    name: Annotated[str | None, Used("with tool, one of the declared names")] = None
    disable_parallel_tool_use: Annotated[bool | None, Used("true: the first call is kept, the rest dropped")] = None


class PostThinking(Struct, forbid_unknown_fields=True):
    """The answer's own sampler: a misspelt member would be silently sampled with the preset, so it is refused."""

    temperature: Annotated[Unit | None, Used("0 to 1")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    top_k: Annotated[Count | None, Used("0 and up; 0, and above 20, is 20")] = None
    min_p: Annotated[Unit | None, Used("0 to 1")] = None
    presence_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    frequency_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    seed: Annotated[int | None, Used("a signed number of 64 bits")] = None


class PromptBody(Struct, kw_only=True):
    """What makes the prompt."""

    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored("metadata", "user_profile_id", "diagnostics", why="labels of the client's own"),
        Ignored("service_tier", "speed", "inference_geo", why="there is one place and one speed"),
        Ignored("context_management", why="the conversation is used as it is sent"),
    )

    model: Annotated[Label, Used("any name; it is repeated in the answer and chooses nothing")]
    messages: Annotated[
        list[MessageIn], Meta(min_length=1), Used("at least one, of role user, assistant or system; see below")
    ]
    system: Annotated[str | list[Block] | None, Used("a text, or text blocks")] = None
    thinking: Annotated[ThinkingIn | None, Used("an object; left out: the server's default")] = None
    output_config: Annotated[OutputConfig | None, Used("an object")] = None
    tools: Annotated[list[ToolIn] | None, Used("definitions of functions the client runs")] = None
    tool_choice: Annotated[ToolChoice | None, Used("an object; left out: auto")] = None
    cache_control: Annotated[Any, Used("a hint; see below")] = None
    preserve_thinking: Annotated[bool | None, Used("whether reasoning of closed turns is kept")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Used("variables for the template")] = None
    graft: Annotated[str | None, Only(empty, "empty", "No grafts are loaded", "unknown_graft")] = None
    container: Annotated[Any, Only(left_out, "", "There are no containers")] = None
    mcp_servers: Annotated[list[Any] | None, Only(empty, "", "No MCP servers are called")] = None


class MessagesBody(PromptBody, kw_only=True):
    """A prompt, and how it is answered."""

    max_tokens: Annotated[int | None, Used("1 and up: the whole output, reasoning included")] = None
    stream: Annotated[bool | None, Used("true: an event stream")] = None
    temperature: Annotated[Unit | None, Used("0 to 1")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    top_k: Annotated[Count | None, Used("0 and up; 0, and above 20, is 20")] = None
    stop_sequences: Annotated[Stops | None, Used("up to 32; they act in reasoning and answer")] = None
    post_thinking: Annotated[PostThinking | None, Used("the sampler of the answer; `{}` takes the preset")] = None
    output_format: Annotated[Any, Only(left_out, "", "Output is not constrained", "response_format_not_supported")] = (
        None
    )


class CountBody(PromptBody, kw_only=True):
    """A prompt that is counted."""

    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored(
            "max_tokens",
            "stream",
            "temperature",
            "top_p",
            "top_k",
            "stop_sequences",
            "post_thinking",
            "output_format",
            why="they are about the answer",
        ),
    )
