"""What llama.cpp's clients ask about the server: its properties, its slots, its models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from ninfer_core.api import ApiError, Engine, FrontendContext, HttpRequest, HttpResponse, ModelInfo, Slot
from ninfer_core.api.http import decode, event_stream, json_response, sse_event
from ninfer_core.api.model_card import model_card

from .types import ModelBody

NO_LIMIT = -1
ANY_SEED = -1
SAMPLER = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")

_model_body = msgspec.json.Decoder(ModelBody)


class Server:
    """Read-only views of one server; nothing here is a use of a model."""

    def __init__(self, context: FrontendContext) -> None:
        self._context = context

    async def props(self, request: HttpRequest) -> HttpResponse:
        """``GET /props``."""
        return json_response(props(self._asked(request).info, self._context.version))

    async def slots(self, request: HttpRequest) -> HttpResponse:
        """``GET /slots``."""
        engine = self._asked(request)
        return json_response([slot(one, engine.info) for one in engine.slots()])

    async def slot_action(self, _request: HttpRequest) -> HttpResponse:
        """``POST /slots/{id}``: sessions are kept in files only where the operator has named a folder for them."""
        text = "This server keeps no sessions in files."
        raise ApiError("slot_persistence_disabled", text, status=501, type="not_supported_error")

    async def models(self, _request: HttpRequest) -> HttpResponse:
        """``GET /models``: the catalog."""
        words = self._context.options.words
        return json_response({"object": "list", "data": [entry(e.info, words) for e in self._context.engines()]})

    async def load(self, request: HttpRequest) -> HttpResponse:
        """``POST /models/load``: a loaded model is as loaded as it can be."""
        await self._named(request)
        return json_response({"success": True})

    async def unload(self, request: HttpRequest) -> HttpResponse:
        """``POST /models/unload``: the one model of a server stays until the server ends."""
        engine = await self._named(request)
        text = f"{engine.info.id!r} is the only model of this server, and stays loaded until the server is stopped."
        raise ApiError("model_unload_not_supported", text, param="model", status=501, type="not_supported_error")

    async def sleep(self, request: HttpRequest) -> HttpResponse:
        """``POST /models/sleep``."""
        engine = await self._named(request)
        text = f"{engine.info.id!r} cannot give its memory back while it is loaded."
        raise ApiError("model_suspend_disabled", text, param="model", status=501, type="not_supported_error")

    async def changes(self, _request: HttpRequest) -> HttpResponse:
        """``GET /models/sse``: one event for each change of a model's status, until the server stops."""
        return event_stream(self._changes())

    async def _changes(self) -> AsyncIterator[bytes]:
        # a client learns at once that it listens
        yield b": model status\n\n"
        await self._context.ended()
        for engine in self._context.engines():
            yield sse_event({"model": engine.info.id, "event": "model_status", "data": {"status": "unloading"}})

    def _asked(self, request: HttpRequest) -> Engine:
        return self._context.engine(request.query.get("model"))

    async def _named(self, request: HttpRequest) -> Engine:
        body = await decode(request.body, _model_body)
        if not body.model:
            raise ApiError("invalid_value", "'model' is empty; it must be a model's id.", param="model")
        return self._context.engine(body.model)


def props(info: ModelInfo, version: str) -> dict[str, Any]:
    """llama.cpp's properties, those of them that are true here."""
    limit = NO_LIMIT if info.default_max_tokens is None else info.default_max_tokens
    seed = info.sampling.get("seed")
    params = {
        "n_predict": limit,
        "max_tokens": limit,
        **{name: info.sampling[name] for name in SAMPLER if name in info.sampling},
        "seed": ANY_SEED if seed is None else seed,
    }
    return {
        "default_generation_settings": {"n_ctx": info.max_context, "speculative": info.speculative, "params": params},
        "total_slots": info.max_concurrency,
        "model_alias": info.id,
        "model_path": info.path,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ninfer {version}",
        "endpoint_slots": True,
        "endpoint_props": True,
        "endpoint_metrics": True,
        "cors_proxy_enabled": False,
    }


def slot(one: Slot, info: ModelInfo) -> dict[str, Any]:
    """One slot as llama.cpp lists it."""
    kept = {} if one.digest is None else {"session_digest": one.digest}
    return {
        "id": one.index,
        "is_processing": one.is_processing,
        "retained": one.digest is not None,
        **kept,
        "checkpoints": [{"frontier": mark.frontier, "session_digest": mark.digest} for mark in one.checkpoints],
        "n_ctx": info.max_context,
        "n_prompt_tokens": one.prompt_tokens,
        "n_prompt_tokens_cache": one.cached_tokens,
        "speculative": info.speculative,
    }


def entry(info: ModelInfo, words: Sequence[str]) -> dict[str, Any]:
    """One model of the catalog, loaded. ``words``: the options the server was started with."""
    status = {"value": "loaded", "args": [info.path, *words], "failed": False}
    return {**model_card(info), "aliases": [], "path": info.path, "status": status}
