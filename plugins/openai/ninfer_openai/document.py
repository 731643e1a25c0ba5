"""What ``docs/protocols/openai.md`` is made from."""

from __future__ import annotations

from ninfer_core.api.fields import Endpoint, ProtocolDocument

from .chat import types as chat
from .completions.types import CompletionBody
from .responses.document import ENDPOINTS as RESPONSES
from .values import PostThinking, StreamOptions

CALLS = (
    "A call goes back in the form of its tool: `function` with `arguments`, a text of JSON, or `custom` with `input`. A"
    " stream sends the name first and what the call is given after it. A call that cannot be read comes back as one to"
    " `malformed_tool_call`, whose arguments say what went wrong."
)
DROPPED = (
    "With `--lenient-tools` a definition of another type than function and custom, or of a custom tool with a grammar,"
    " is dropped instead of refused; the response header `X-NInfer-Dropped-Tools` names it. The header names every tool"
    " that the model does not see: a model whose chat template has no place for tools sees none."
)

DOCUMENT = ProtocolDocument(
    title="OpenAI: fields of the bodies",
    intro=(
        "A value that cannot be used is a 400 whose `param` names its place: `invalid_type`, `invalid_value`,"
        " `missing_required_parameter`, or the code below. Null is as good as left out unless a row says otherwise. A"
        " body of more than 50,000 objects and arrays is `request_too_complex`, one with a `content-encoding`"
        " `content_encoding_not_supported`."
    ),
    endpoints=(
        Endpoint(
            route="POST /v1/chat/completions",
            summary="A conversation, rendered with the model's template.",
            body=chat.ChatBody,
            parts=(
                ("`messages[]`", chat.MessageIn),
                ("`messages[].content[]`", chat.PartIn),
                ("`image_url`, `video_url`", chat.MediaSource),
                ("`messages[].tool_calls[]`", chat.ToolCallIn),
                ("`function` of a call", chat.FunctionIn),
                ("`custom` of a call", chat.CustomIn),
                ("`tools[]`", chat.ToolIn),
                ("`function` of a tool", chat.FunctionTool),
                ("`custom` of a tool", chat.CustomTool),
                ("`tool_choice`", chat.ToolChoice),
                ("`tool_choice.allowed_tools`", chat.AllowedTools),
                ("`stream_options`", StreamOptions),
                ("`post_thinking` (other members are refused)", PostThinking),
            ),
            notes=(CALLS, DROPPED),
        ),
        Endpoint(
            route="POST /v1/completions",
            summary="A raw prompt: no template, no reasoning channel, no tools. Control tokens are spelled in it.",
            body=CompletionBody,
            parts=(("`stream_options`", StreamOptions),),
        ),
        *RESPONSES,
    ),
)
