"""The routes of this dialect, bound to one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ninfer_core.api import Engine, Frontend, FrontendContext, HttpRequest, HttpResponse, Route
from ninfer_core.api.http import beside, decode, error_response, event_stream, invalid_value, json_response, to_json

from . import rerank
from .render import Rendering, chunks, completion
from .server import Server
from .to_job import to_job
from .types import CompletionBody, DetokenizeBody, RerankBody, TokenizeBody

BATCH = 10_000  # token ids written at once

_completion_body = msgspec.json.Decoder(CompletionBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)
_rerank_body = msgspec.json.Decoder(RerankBody)


class LlamaCpp:
    """Handlers hold no state between requests."""

    def __init__(self, context: FrontendContext) -> None:
        self._context = context
        self._server = Server(context)

    def frontend(self) -> Frontend:
        """What the core serves."""
        server = self._server
        routes = (
            ("POST", "/completion", self.complete, "llama.cpp's completion of a raw prompt"),
            ("POST", "/completions", self.complete, "the same"),
            ("POST", "/tokenize", self.tokenize, "text to token ids"),
            ("POST", "/detokenize", self.detokenize, "token ids to text"),
            ("POST", "/apply-template", self.apply_template, "the prompt a chat request renders to"),
            ("POST", "/v1/rerank", self.rerank, "documents ranked by their relevance to a query"),
            ("POST", "/v1/reranking", self.rerank, "the same"),
            ("POST", "/rerank", self.rerank, "the same"),
            ("POST", "/reranking", self.rerank, "the same"),
            ("GET", "/props", server.props, "defaults, context and lanes as llama.cpp's clients read them"),
            ("GET", "/slots", server.slots, "what each slot is doing"),
            ("POST", "/slots/{id_slot}", server.slot_action, "save, restore or erase a session"),
            ("GET", "/models", server.models, "the models and their status"),
            ("POST", "/models/load", server.load, "load a model"),
            ("POST", "/models/unload", server.unload, "unload a model"),
            ("POST", "/models/sleep", server.sleep, "put a model to sleep"),
            ("GET", "/models/sse", server.changes, "an event for each change of a model's status"),
        )
        return Frontend(
            routes=tuple(Route(method=verb, path=path, handler=do, summary=text) for verb, path, do, text in routes),
            envelope=error_response,
            prefixes=tuple(dict.fromkeys(path.partition("/{")[0] for _, path, _, _ in routes)),
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
        special = body.parse_special is not False
        ids = await engine.tokenize(body.content, parse_special=special, add_special=bool(body.add_special))
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

    async def rerank(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/rerank`` and its other names."""
        body = await decode(request.body, _rerank_body)
        engine = self._context.engine(body.model)
        asked = rerank.question(body)
        among = rerank.answers(engine)
        jobs = rerank.judgements(asked, request.request_id)
        scores = await engine.score(jobs, among.tokens)

        def answer() -> HttpResponse:
            ranked = rerank.ranking(asked, scores, among)
            return json_response(rerank.answer(asked, ranked, scores, engine.info.id))

        return await beside(request.body, answer)


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
