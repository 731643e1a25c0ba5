"""The model list: one object per served model, its context limit under every name clients look for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninfer_core.api import Engine, ModelInfo


def model_list(engines: Iterable[Engine]) -> dict[str, Any]:
    """OpenAI's list object."""
    return {"object": "list", "data": [model_object(engine.info) for engine in engines]}


def model_object(info: ModelInfo) -> dict[str, Any]:
    """``meta`` has llama.cpp's shape, ``architecture`` OpenRouter's."""
    return {
        "id": info.id,
        "object": "model",
        "created": info.created,
        "owned_by": "ninfer",
        "max_model_len": info.max_context,
        "context_window": info.max_context,
        "context_length": info.max_context,
        "modalities": {"vision": False},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "meta": {
            "n_vocab": info.vocab_tokens,
            "n_ctx": info.max_context,
            "n_ctx_train": info.trained_context,
            "n_embd": info.hidden_size,
            "n_params": info.parameters,
            "size": info.weight_bytes,
            "ftype": "+".join(info.weight_formats),
        },
    }
