"""The routes of this protocol, bound to one server."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import msgspec

from ninfer_core.api import ChatJob, Engine, Frontend, FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import Body, beside, decode, error_response, event_stream, json_response
from ninfer_core.api.model_card import model_card
from ninfer_core.api.tool_sets import tool_headers

from . import chat, completions
from .answers import Head
from .models import model_list, no_suspend, residency
from .responses.routes import Responses
from .values import StreamOptions

_chat_body = msgspec.json.Decoder(chat.ChatBody)
_completion_body = msgspec.json.Decoder(completions.CompletionBody)


class OpenAI:
    """Only stored Responses outlive a request. ``clock``: seconds since the epoch, for ``created``."""

    def __init__(self, context: FrontendContext, clock: Callable[[], float] = time.time) -> None:
        self._context = context
        self._clock = clock
        options = context.options
        self._lenient = chat.Leniency(
            assistant_prefill=bool(options.get("assistant_prefill", False)),
            image_detail=bool(options.get("lenient_image_detail", False)),
            tools=bool(options.get("lenient_tools", False)),
        )
        self.responses = Responses(context, clock)
        self._usage_choice = bool(options.get("usage_chunk_choice", False))

    def frontend(self) -> Frontend:
        """What the core serves."""
        routes = (
            ("POST", "/v1/chat/completions", self.chat_completions, "OpenAI chat generation"),
            ("POST", "/v1/completions", self.completions, "OpenAI legacy completion of a raw prompt"),
            ("GET", "/v1/models", self.models, "the served models"),
            ("GET", "/v1/models/{model_id:path}", self.model, "one served model"),
            ("GET", "/v1/models/{model_id:path}/residency", self.residency, "where the model is"),
            ("POST", "/v1/models/{model_id:path}/suspend", self.suspended, "refused: models are not suspended"),
            ("POST", "/v1/models/{model_id:path}/resume", self.suspended, "refused: models are not suspended"),
        )
        return Frontend(
            routes=(
                *(Route(method=verb, path=path, handler=do, summary=text) for verb, path, do, text in routes),
                *self.responses.routes(),
            ),
            envelope=error_response,
            prefixes=("/v1",),
            read_chat=self.read_chat,
        )

    async def chat_completions(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/chat/completions``."""
        body = await decode(request.body, _chat_body)
        engine = self._context.engine(body.model)
        job, tools = await self._chat_job(body, request.body, request.request_id)
        rendering = chat.Rendering(
            head=self._head(request, engine, "chatcmpl-", body.stream_options, body.timings_per_token),
            calls=chat.Calls(answer_id=_answer_id(request), custom=tools.custom),
            token_bytes=None if job.logprobs is None else engine.token_bytes,
        )
        generation = await engine.chat(job)
        if body.stream:
            response = event_stream(chat.chunks(generation, rendering))
        else:
            async with generation:
                result = await generation.result()
            response = json_response(chat.completion(result, rendering))
        response.headers.update(tool_headers(engine.info, tools.offered, tools.dropped))
        return response

    async def completions(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/completions``."""
        body = await decode(request.body, _completion_body)
        engine = self._context.engine(body.model)
        vocab, request_id = engine.info.vocab_tokens, request.request_id
        read = partial(completions.to_job, body, vocab_tokens=vocab, request_id=request_id)
        job = await beside(request.body, read)
        head = self._head(request, engine, "cmpl-", body.stream_options, body.timings_per_token)
        echo = await completions.prompt_text(engine, job) if body.echo else ""
        generation = await engine.complete(job)
        if body.stream:
            return event_stream(completions.chunks(generation, head, echo))
        async with generation:
            result = await generation.result()
        return json_response(completions.completion(result, head, echo))

    async def models(self, _request: HttpRequest) -> HttpResponse:
        """``GET /v1/models``."""
        return json_response(model_list(self._context.engines()))

    async def model(self, request: HttpRequest) -> HttpResponse:
        """``GET /v1/models/{id}``."""
        return json_response(model_card(self._context.engine(request.params["model_id"], param="model").info))

    async def residency(self, request: HttpRequest) -> HttpResponse:
        """``GET /v1/models/{id}/residency``."""
        self._context.engine(request.params["model_id"], param="model")
        return json_response(residency())

    async def suspended(self, request: HttpRequest) -> NoReturn:
        """``POST /v1/models/{id}/suspend`` and ``/resume``."""
        raise no_suspend(self._context.engine(request.params["model_id"], param="model").info)

    async def read_chat(self, raw: Body) -> tuple[Engine, ChatJob]:
        """A chat body as a job, for frontends that render or count it."""
        body = await decode(raw, _chat_body)
        job, _ = await self._chat_job(body, raw, "")
        return self._context.engine(body.model), job

    async def _chat_job(self, body: chat.ChatBody, raw: Body, request_id: str) -> tuple[ChatJob, chat.ToolSet]:
        return await beside(raw, partial(chat.to_job, body, request_id=request_id, lenient=self._lenient))

    def _head(
        self, request: HttpRequest, engine: Engine, prefix: str, options: StreamOptions | None, timings: bool | None
    ) -> Head:
        return Head(
            id=prefix + _answer_id(request),
            created=int(self._clock()),
            model=engine.info.id,
            include_usage=options is not None and bool(options.include_usage),
            usage_choice=self._usage_choice,
            timings_per_token=bool(timings),
        )


def _answer_id(request: HttpRequest) -> str:
    """The exchange's own id, so that an answer is found by what the client saw of it."""
    return request.request_id.removeprefix("req_")
