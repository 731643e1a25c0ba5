"""What clients are told of a served model, in the shape that OpenAI's and llama.cpp's lists share."""

from __future__ import annotations

from typing import Any

from .jobs import ModelInfo


def model_card(info: ModelInfo) -> dict[str, Any]:
    """The context limit under every name clients look for; ``meta`` has llama.cpp's shape, ``architecture``
    OpenRouter's."""
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
