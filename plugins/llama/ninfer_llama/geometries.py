"""The sizes of published models, as artifact configs: what ``ninfer bench --geometry NAME`` measures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ninfer_core.api import ArtifactError

COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "vocab_size": 49152,
        "num_hidden_layers": 30,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "rope_theta": 1e5,
    },
    "llama-8b": {
        "hidden_size": 4096,
        "vocab_size": 128256,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "rope_theta": 5e5,
    },
}


def config(name: str, layers: int | None = None) -> dict[str, Any]:
    """The config of one of ``CONFIGS`` with the first ``layers`` of its layers; ArtifactError when it has fewer."""
    found = COMMON | CONFIGS[name]
    most = found["num_hidden_layers"]
    count = most if layers is None else layers
    if not 1 <= count <= most:
        raise ArtifactError(f"{name} has {most} layers; --layers {count} is not among 1 to {most}")
    return found | {"num_hidden_layers": count}


GEOMETRIES = MappingProxyType({name: partial(config, name) for name in CONFIGS})
