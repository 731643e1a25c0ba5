"""Small geometries of two families, for measurements that need no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from ninfer_core.api import ArtifactError, ModelFamily, hookimpl
from ninfer_llama import LLAMA
from ninfer_qwen35 import QWEN35

NEEDED = {"llama", "qwen35", "kv_bf16", "row_fp8", "groupwise_int", "nvfp4"}
LAYERS = 3
COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "intermediate_size": 48,
    "rope_theta": 1e4,
    "attention_bias": False,
    "mlp_bias": False,
}
MOE = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def dense(layers: int | None) -> dict[str, Any]:
    return COMMON | DENSE | {"num_hidden_layers": _count(layers)}


def moe(layers: int | None) -> dict[str, Any]:
    count = _count(layers)
    kinds = ["linear_attention", "full_attention", "linear_attention"][:count]
    return COMMON | MOE | {"num_hidden_layers": count, "layer_types": kinds}


def _count(layers: int | None) -> int:
    if layers is not None and layers > LAYERS:
        raise ArtifactError(f"there are {LAYERS} layers; --layers {layers} is not among 1 to {LAYERS}")
    return layers or LAYERS


tiny = partial(replace, sources={}, options=())
FAMILY = tiny(LLAMA, name="tiny", architectures=("TinyForCausalLM",), geometries={"tiny": dense})
EXPERTS = tiny(QWEN35, name="tiny_moe", architectures=("TinyMoeForCausalLM",), geometries={"tiny-moe": moe})


def plugin(name: str, families: Iterable[ModelFamily] = (FAMILY, EXPERTS)) -> tuple[str, ModuleType]:
    """A module of that name which offers these families."""
    module = ModuleType(name)
    module.NINFER_API = 1  # type: ignore[attr-defined]

    @hookimpl
    def ninfer_model_families() -> list[ModelFamily]:
        return list(families)

    module.ninfer_model_families = ninfer_model_families  # type: ignore[attr-defined]
    return name, module
