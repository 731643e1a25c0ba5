"""What ``docs/protocols/anthropic.md`` is made from."""

from __future__ import annotations

from ninfer_core.api.fields import Endpoint, ProtocolDocument

from .signatures import RESTORABLE
from .types import CountBody, MessagesBody, OutputConfig, PostThinking, ThinkingIn, ToolChoice, ToolIn

PARTS = (
    ("`thinking`", ThinkingIn),
    ("`output_config`", OutputConfig),
    ("Each of `tools`", ToolIn),
    ("`tool_choice`", ToolChoice),
)

TURNS = (
    "### Turns",
    "Neighbours of one role are one turn, with nothing put between their texts. A system message may stand anywhere "
    "but between calls and their results; each is a turn of its own. An assistant turn may hold `text`, `thinking`, "
    "`redacted_thinking` (another server's: it is passed over) and `tool_use` blocks in any order: the model reads "
    "reasoning, text, calls. A user turn may hold `text` and `tool_result` blocks. Images are refused while the server "
    "reads text only; documents, search results, uploads and whatever runs on a server are refused, each with what is "
    "missing.",
    "The turn after one with calls begins with exactly one result for each of them, in any order; the model reads them "
    "in the order of the calls. A conversation may begin with results of calls that were cut off. A result with "
    "`is_error` true is marked as failed. Anything else is `invalid_tool_history`.",
    "An assistant turn at the end is continued. It is text only and needs `thinking` of type disabled, else it is "
    "`assistant_prefill_not_supported`.",
)

TOOLS = (
    "### Tools",
    "`any` over one tool and `tool` make the answer begin with that call; a request that turns thinking on with them "
    "is `tool_choice_not_supported`. `any` over several is read as auto. Tools with a `type` of their own, with "
    "`defer_loading`, or that the model may not call directly, and `mcp_servers`, are refused; `--lenient-tools` drops "
    "them and names them in `X-NInfer-Dropped-Tools`. That header names every tool the model does not see: a model "
    "whose chat template has no place for tools sees none. `strict` true is refused in any case.",
)

THINKING = (
    "### Thinking blocks",
    "A thinking block that comes back is read by its text. If that is empty and its signature begins with "
    f"`{RESTORABLE}`, the text is taken from the signature; one that cannot be read is `invalid_thinking_signature`.",
)

HINTS = (
    "### Hints",
    "`cache_control` of type ephemeral, on the request, tools, system, user text and tool results, says that prompts "
    "will begin alike up to there. Other values, `ttl`, and those on assistant blocks are passed over.",
)

DOCUMENT = ProtocolDocument(
    title="Anthropic's routes",
    intro=(
        "Anthropic's SDKs append `/v1/messages` to their base URL. A refusal is an object of `type` error, the "
        "`request_id` and `error` with `type` and `message`; where the client can act on it, `details` holds the cause "
        "as `error_code` and its place in the body as `param`. A full server answers 529, one that let a request wait "
        "too long 504. A body of more than 50,000 objects and arrays is `request_too_complex`, one with a "
        "`content-encoding` `content_encoding_not_supported`."
    ),
    endpoints=(
        Endpoint(
            route="POST /v1/messages",
            summary="An answer, whole or as an event stream.",
            body=MessagesBody,
            parts=(*PARTS, ("`post_thinking`", PostThinking)),
            notes=(*TURNS, *TOOLS, *THINKING, *HINTS),
        ),
        Endpoint(
            route="POST /v1/messages/count_tokens",
            summary='The tokens of the prompt that `/v1/messages` would have for this body: `{"input_tokens": N}`.',
            body=CountBody,
            notes=("`output_config.format` and `thinking.display` do not change the count.",),
        ),
    ),
)
