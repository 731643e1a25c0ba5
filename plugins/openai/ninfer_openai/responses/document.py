"""What ``docs/protocols/openai.md`` says of Responses."""

from __future__ import annotations

from ninfer_core.api.fields import Endpoint

from ..values import PostThinking
from . import types

ITEMS = (
    "Items that follow each other and belong to the assistant are one turn: reasoning, then text, then calls. Another"
    " order is `invalid_assistant_history`; with `--lenient-assistant-history` text and reasoning after calls join the"
    " turn. The outputs of a turn's calls follow it, one for each call in any order; anything else is"
    " `invalid_tool_history`. An id that the conversation has already is refused. Items and parts of other types are"
    " refused by name."
)
TOOLS = (
    "A function of a namespace is `namespace.name` to the model and has both members again in every call. With"
    " `--lenient-tools` definitions of another type, deferred ones and those the model may not call are dropped instead"
    " of refused, and the response header `X-NInfer-Dropped-Tools` names them. The header names every function that the"
    " model does not see: a model whose chat template has no place for tools sees none."
)
FORCED = (
    "A choice that forces a call ends the prompt inside it, so it cannot be had with reasoning that the request"
    " itself turns on (`tool_choice_not_supported`); reasoning that is only a default is off for that request."
)
STORE = (
    "A stored Response is found by `GET /v1/responses/{id}`, its own input by `GET /v1/responses/{id}/input_items`"
    " (`after`, `limit` 1 to 100, 20 by default, `order` desc or asc), and forgotten by `DELETE /v1/responses/{id}`."
    " What continued it goes on. It is stored at its end: one that failed, or whose client went away before, is not."
    " The least recently used make room for later ones (`--response-store-max-records`, `--response-store-max-mib`);"
    " an id that is not kept is 404 `response_not_found`, and a Response too large to keep is 400"
    " `response_store_capacity_exceeded`. `POST /v1/responses/{id}/cancel` is `background_not_supported`,"
    " `POST /v1/responses/compact` is `compaction_not_supported`."
)
STREAM = (
    "Log probabilities of an answer belong to its text, those of the markup of calls too; where they are asked for,"
    " calls are sent when the text is whole. A stream that fails after its beginning ends with `response.failed`."
)
PARTS = (
    ("`input[]`", types.ItemIn),
    ("`input[].content[]`, `input[].output[]`", types.PartIn),
    ("`prompt_cache_breakpoint`", types.BreakpointIn),
    ("`input[].summary[]`", types.SummaryIn),
    ("a function of `tools[]`", types.FunctionIn),
    ("a namespace of `tools[]`", types.NamespaceIn),
    ("`tool_choice`", types.ToolChoiceIn),
    ("`tool_choice.tools[]`", types.AllowedIn),
    ("`reasoning` (other members are refused)", types.ReasoningIn),
    ("`text` (other members are refused)", types.TextIn),
)
ENDPOINTS = (
    Endpoint(
        route="POST /v1/responses",
        summary="Items in, Items out. Fields of other names are refused as `unknown_parameter`.",
        body=types.CreateBody,
        parts=(
            *PARTS,
            ("`stream_options` (other members are refused)", types.StreamOptionsIn),
            ("`prompt_cache_options`", types.CacheOptionsIn),
            ("`post_thinking` (other members are refused)", PostThinking),
        ),
        notes=(ITEMS, TOOLS, FORCED, STREAM, STORE),
    ),
    Endpoint(
        route="POST /v1/responses/input_tokens",
        summary="The tokens of the prompt a Response to the same body would have. Fields of other names are refused.",
        body=types.CountBody,
    ),
)
