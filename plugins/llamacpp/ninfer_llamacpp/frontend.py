"""The routes of this dialect, bound to one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ninfer_core.api import Engine, Frontend, FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import beside, decode, error_response, event_stream, invalid_value, json_response, to_json

from .render import Rendering, chunks, completion
from .to_job import to_job
from .types import CompletionBody, DetokenizeBody, TokenizeBody

BATCH = 10_000  # token ids written at once

_completion_body = msgspec.json.Decoder(CompletionBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)


class LlamaCpp:
    """Handlers hold no state between requests."""

    def __init__(self, context: FrontendContext) -> None:
        self._context = context

    def frontend(self) -> Frontend:
        """What the core serves."""
        posts = (
            ("/completion", self.complete, "llama.cpp's completion of a raw prompt"),
            ("/completions", self.complete, "the same"),
            ("/tokenize", self.tokenize, "text to token ids"),
            ("/detokenize", self.detokenize, "token ids to text"),
            ("/apply-template", self.apply_template, "the prompt a chat request renders to"),
        )
        return Frontend(
            routes=tuple(Route(method="POST", path=path, handler=do, summary=text) for path, do, text in posts),
            envelope=error_response,
            prefixes=tuple(path for path, _, _ in posts),
        )

    async def complete(self, request: HttpRequest) -> HttpResponse:
        """``POST /completion``."""
        body = await decode(request.body, _completion_body)
        engine = self._context.engine(body.model)
        vocab, request_id = engine.info.vocab_tokens, request.request_id
        job = await beside(request.body, partial(to_job, body, vocab_tokens=vocab, request_id=request_id))
        rendering = Rendering(
            engine=engine,
            job=job,
            stream=bool(body.stream),
            return_tokens=bool(body.return_tokens),
            timings_per_token=bool(body.timings_per_token),
            response_fields=body.response_fields,
        )
        generation = await engine.complete(job)
        if body.stream:
            return event_stream(chunks(generation, rendering))
        async with generation:
            result = await generation.result()
        return json_response(await completion(generation, result, rendering))

    async def tokenize(self, request: HttpRequest) -> HttpResponse:
        """``POST /tokenize``: ids, or ids with their pieces; a piece that is not whole UTF-8 is given as its bytes."""
        body = await decode(request.body, _tokenize_body)
        engine = self._context.engine(body.model)
        ids = await engine.tokenize(body.content, parse_special=body.parse_special, add_special=body.add_special)
        shown = partial(_pieces, engine) if body.with_pieces else list
        if len(ids) <= BATCH:
            return _token_list(ids, shown)
        return await asyncio.to_thread(_token_list, ids, shown)

    async def detokenize(self, request: HttpRequest) -> HttpResponse:
        """``POST /detokenize``: the text of token ids, special tokens included."""
        body = await decode(request.body, _detokenize_body)
        engine = self._context.engine(body.model)
        await beside(request.body, partial(_check_tokens, body.tokens, engine.info.vocab_tokens))
        return json_response({"content": await engine.detokenize(body.tokens, counted=True)})

    async def apply_template(self, request: HttpRequest) -> HttpResponse:
        """``POST /apply-template``: a chat body is read by the frontend that owns it."""
        engine, job = await self._context.read_chat(request.body)
        return json_response({"prompt": await engine.render(job)})


def _check_tokens(tokens: Sequence[int], size: int) -> None:
    for at, token in enumerate(tokens):
        if not 0 <= token < size:
            raise invalid_value(f"tokens[{at}]", token, f"a token id from 0 to {size - 1}")


def _token_list(ids: Sequence[int], shown: Callable[[Sequence[int]], list[Any]]) -> HttpResponse:
    """``{"tokens": [...]}``, encoded a batch at a time: encoding millions at once would hold up every stream."""
    batches = [to_json(shown(ids[at : at + BATCH]))[1:-1] for at in range(0, len(ids), BATCH)]
    return HttpResponse(body=b'{"tokens":[' + b",".join(batches) + b"]}")


def _pieces(engine: Engine, ids: Sequence[int]) -> list[Any]:
    return [{"id": token, "piece": _piece(engine.token_bytes(token))} for token in ids]


def _piece(spelled: bytes) -> str | list[int]:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return list(spelled)
