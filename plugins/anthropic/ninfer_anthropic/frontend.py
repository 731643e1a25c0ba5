"""The routes of this protocol, bound to one server."""

from __future__ import annotations

from functools import partial

import msgspec

from ninfer_core.api import Frontend, FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import beside, decode, event_stream, json_response
from ninfer_core.api.tool_sets import tool_headers

from .errors import envelope, error_event
from .render import HEARTBEAT, Rendering, events, message
from .to_job import Leniency, prompt_job, to_job
from .types import CountBody, MessagesBody

_messages_body = msgspec.json.Decoder(MessagesBody)
_count_body = msgspec.json.Decoder(CountBody)


class Anthropic:
    """Handlers hold no state between requests."""

    def __init__(self, context: FrontendContext) -> None:
        self._context = context
        self._leniency = Leniency(
            tools=bool(context.options.get("lenient_tools", False)),
            volatile_system=bool(context.options.get("strip_volatile_system", False)),
        )

    def frontend(self) -> Frontend:
        """What the core serves."""
        return Frontend(
            routes=(
                Route(
                    method="POST", path="/v1/messages", handler=self.messages, summary="Anthropic message generation"
                ),
                Route(
                    method="POST",
                    path="/v1/messages/count_tokens",
                    handler=self.count_tokens,
                    summary="the tokens of a Messages prompt",
                ),
            ),
            envelope=envelope,
            prefixes=("/v1/messages",),
            request_id_header="request-id",
        )

    async def messages(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/messages``."""
        body = await decode(request.body, _messages_body)
        read = partial(to_job, body, request_id=request.request_id, leniency=self._leniency)
        asked = await beside(request.body, read)
        rendering = Rendering(
            exchange=request.request_id.removeprefix("req_"), model=body.model, omits_thinking=asked.omits_thinking
        )
        # the client's name for the model chooses nothing
        engine = self._context.engine(None)
        generation = await engine.chat(asked.job)
        if body.stream:
            response = event_stream(
                events(generation, rendering),
                heartbeat=HEARTBEAT,
                late_error=lambda error: error_event(error, request.request_id),
            )
        else:
            async with generation:
                result = await generation.result()
            response = json_response(message(result, rendering))
        response.headers |= tool_headers(engine.info, asked.job.tools, asked.dropped_tools)
        return response

    async def count_tokens(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/messages/count_tokens``: the tokens of the prompt that Messages would have for this body."""
        body = await decode(request.body, _count_body)
        asked = await beside(request.body, partial(prompt_job, body, self._leniency))
        engine = self._context.engine(None)
        headers = tool_headers(engine.info, asked.job.tools, asked.dropped_tools)
        return json_response({"input_tokens": await engine.count(asked.job)}, headers=headers)
