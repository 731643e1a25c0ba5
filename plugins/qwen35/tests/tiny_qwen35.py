"""A tiny checkpoint in Hugging Face's names, written without transformers, and ways to spoil it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ninfer_core.api import Source
from ninfer_core.testing import compose

VOCAB = 97
TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "intermediate_size": 48,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "mtp_num_hidden_layers": 1,
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": TEXT,
    "vision_config": {"depth": 2},
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}


def config(*, moe: bool = False, **text: Any) -> dict[str, Any]:
    """config.json; ``text`` changes the text model's keys, None takes one away."""
    out = copy.deepcopy(CONFIG)
    own = out["text_config"]
    if moe:
        out |= {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"}
        own |= {"model_type": "qwen3_5_moe_text", **EXPERTS}
        del own["intermediate_size"]
    for key, value in text.items():
        if value is None:
            own.pop(key, None)
        else:
            own[key] = value
    return out


def shapes(c: Mapping[str, Any], *, mtp: bool = True, vision: bool = True) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, as the official checkpoints have them."""
    t = c["text_config"]
    h = t["hidden_size"]
    prefix = "model.language_model."
    out: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (t["vocab_size"], h),
        f"{prefix}norm.weight": (h,),
    }
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (t["vocab_size"], h)
    for i, kind in enumerate(t["layer_types"]):
        mixer = _attention(t) if kind == "full_attention" else _gdn(t)
        out |= {f"{prefix}layers.{i}.{name}": shape for name, shape in {**mixer, **_feed_forward(t)}.items()}
    if mtp:
        out |= {"mtp.fc.weight": (h, 2 * h)}
        out |= {f"mtp.{name}.weight": (h,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
        out |= {f"mtp.layers.0.{name}": shape for name, shape in {**_attention(t), **_feed_forward(t)}.items()}
    if vision:
        out |= {"model.visual.pos_embed.weight": (4, 8), "model.visual.blocks.0.norm1.bias": (8,)}
    return out


def _attention(t: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    h, heads, kv, dim = t["hidden_size"], t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"]
    return {
        "self_attn.q_proj.weight": (2 * heads * dim, h),
        "self_attn.k_proj.weight": (kv * dim, h),
        "self_attn.v_proj.weight": (kv * dim, h),
        "self_attn.o_proj.weight": (h, heads * dim),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }


def _gdn(t: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    h, heads = t["hidden_size"], t["linear_num_value_heads"]
    keys, values = t["linear_num_key_heads"] * t["linear_key_head_dim"], heads * t["linear_value_head_dim"]
    return {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, h),
        "linear_attn.in_proj_z.weight": (values, h),
        "linear_attn.in_proj_a.weight": (heads, h),
        "linear_attn.in_proj_b.weight": (heads, h),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, t["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (t["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (h, values),
    }


def _feed_forward(t: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    h = t["hidden_size"]
    norms: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,)}
    if "num_experts" not in t:
        inner = t["intermediate_size"]
        matrices = {"gate_proj": (inner, h), "up_proj": (inner, h), "down_proj": (h, inner)}
        return norms | {f"mlp.{name}.weight": shape for name, shape in matrices.items()}
    experts, inner, shared = t["num_experts"], t["moe_intermediate_size"], t["shared_expert_intermediate_size"]
    return norms | {
        "mlp.gate.weight": (experts, h),
        "mlp.experts.gate_up_proj": (experts, 2 * inner, h),
        "mlp.experts.down_proj": (experts, h, inner),
        "mlp.shared_expert.gate_proj.weight": (shared, h),
        "mlp.shared_expert.up_proj.weight": (shared, h),
        "mlp.shared_expert.down_proj.weight": (h, shared),
        "mlp.shared_expert_gate.weight": (1, h),
    }


def random_tensors(all_shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {name: (torch.randn(shape, generator=g) * shape[-1] ** -0.5).to(dtype) for name, shape in all_shapes.items()}


def write(directory: Path, c: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, **what: bool) -> str:
    """A folder with this config and these tensors, the whole of a checkpoint when none are given."""
    directory.mkdir(exist_ok=True)
    tensors = random_tensors(shapes(c, **what)) if tensors is None else tensors
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(c))
    return str(directory)


def source(directory: Path, c: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, **what: bool) -> Source:
    path = write(directory, c, tensors, **what)
    return next(importer for importer in compose().importers if importer.claims(path)).open(path)
