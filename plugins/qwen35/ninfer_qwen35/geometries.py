"""The sizes of published models, as artifact configs: what ``ninfer bench --geometry NAME`` measures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ninfer_core.api import ArtifactError

INTERVAL = 4  # every fourth layer is full attention
COMMON = {
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "rms_norm_eps": 1e-6,
}
DENSE = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
MOE = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
EXPERTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, value_heads: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "linear_num_value_heads": value_heads,
        "tie_word_embeddings": False,
    }


CONFIGS: Mapping[str, dict[str, Any]] = {
    "4b": {**DENSE, **sizes(32, 2560, 16, 4, 32), "intermediate_size": 9216, "tie_word_embeddings": True},
    "9b": {**DENSE, **sizes(32, 4096, 16, 4, 32), "intermediate_size": 12288},
    "27b": {**DENSE, **sizes(64, 5120, 24, 4, 48), "intermediate_size": 17408},
    "35b-a3b": {**MOE, **EXPERTS, **sizes(40, 2048, 16, 2, 32)},
}


def config(name: str, layers: int | None = None) -> dict[str, Any]:
    """The config of one of ``CONFIGS`` with the first ``layers`` of its layers; ArtifactError when it has fewer."""
    found = COMMON | CONFIGS[name]
    most = found["num_hidden_layers"]
    count = most if layers is None else layers
    if not 1 <= count <= most:
        raise ArtifactError(f"{name} has {most} layers; --layers {count} is not among 1 to {most}")
    kinds = ["full_attention" if i % INTERVAL == INTERVAL - 1 else "linear_attention" for i in range(count)]
    return found | {"num_hidden_layers": count, "layer_types": kinds}


GEOMETRIES = MappingProxyType({name: partial(config, name) for name in CONFIGS})


def token_share(config: Mapping[str, Any], name: str) -> float:
    """A routed expert serves as many of the tokens as chance sends it."""
    if "/moe/experts/" not in name:
        return 1.0
    return float(config["num_experts_per_tok"]) / float(config["num_experts"])
