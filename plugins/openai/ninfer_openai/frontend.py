"""The routes of this protocol, bound to one server."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from ninfer_core.api import ChatJob, Engine, Frontend, FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import beside, decode, error_response, event_stream, json_response

from .models import model_list, model_object
from .render import Rendering, chunks, completion
from .to_job import to_job
from .types import ChatBody

_chat_body = msgspec.json.Decoder(ChatBody)


class OpenAI:
    """Handlers hold no state between requests. ``clock``: seconds since the epoch, for ``created``."""

    def __init__(self, context: FrontendContext, clock: Callable[[], float] = time.time) -> None:
        self._context = context
        self._clock = clock
        self._prefill = bool(context.options.get("assistant_prefill", False))
        self._usage_choice = bool(context.options.get("usage_chunk_choice", False))

    def frontend(self) -> Frontend:
        """What the core serves."""
        return Frontend(
            routes=(
                Route(
                    method="POST",
                    path="/v1/chat/completions",
                    handler=self.chat_completions,
                    summary="OpenAI chat generation",
                ),
                Route(method="GET", path="/v1/models", handler=self.models, summary="the served models"),
                Route(method="GET", path="/v1/models/{model_id:path}", handler=self.model, summary="one served model"),
            ),
            envelope=error_response,
            prefixes=("/v1",),
            read_chat=self.read_chat,
        )

    async def chat_completions(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/chat/completions``."""
        body = await decode(request.body, _chat_body)
        engine = self._context.engine(body.model)
        job = await self._job(body, request.body, request.request_id)
        rendering = Rendering(
            id="chatcmpl-" + request.request_id.removeprefix("req_"),
            created=int(self._clock()),
            model=engine.info.id,
            include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
            usage_choice=self._usage_choice,
            timings_per_token=bool(body.timings_per_token),
            token_bytes=None if job.logprobs is None else engine.token_bytes,
        )
        generation = await engine.chat(job)
        if body.stream:
            return event_stream(chunks(generation, rendering))
        async with generation:
            result = await generation.result()
        return json_response(completion(result, rendering))

    async def models(self, _request: HttpRequest) -> HttpResponse:
        """``GET /v1/models``."""
        return json_response(model_list(self._context.engines()))

    async def model(self, request: HttpRequest) -> HttpResponse:
        """``GET /v1/models/{id}``."""
        return json_response(model_object(self._context.engine(request.params["model_id"], param="model").info))

    async def read_chat(self, raw: bytes) -> tuple[Engine, ChatJob]:
        """A chat body as a job, for frontends that render or count it."""
        body = await decode(raw, _chat_body)
        return self._context.engine(body.model), await self._job(body, raw, "")

    async def _job(self, body: ChatBody, raw: bytes, request_id: str) -> ChatJob:
        return await beside(raw, partial(to_job, body, request_id=request_id, assistant_prefill=self._prefill))
