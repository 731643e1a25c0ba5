"""Tiny Qwen3.5 checkpoints, initialised so that every parameter matters, and transformers' answers to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from ninfer_core.api.nn import Runtime
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.testing import compose
from ninfer_core.testing.cache import SimpleCache
from ninfer_core.testing.rig import Rig, make_step
from ninfer_core.weights.checkpoint import open_checkpoint
from ninfer_qwen35 import names
from ninfer_qwen35.family import mtp_geometry

VOCAB = 320
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 32,  # not the key's, so that a transposed state shows
    "rms_norm_eps": 1e-6,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_mtp_layers": 1,
    "mtp_layer_types": ["full_attention"],
    "tie_word_embeddings": False,
}
DENSE = {"intermediate_size": 96, "num_hidden_layers": 8}
MOE = {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
}
VISION = {
    "depth": 2,
    "hidden_size": 48,
    "num_heads": 4,
    "intermediate_size": 80,
    "num_position_embeddings": 36,
    "out_hidden_size": 64,
}
IDS = {"image_token_id": 310, "video_token_id": 311, "vision_start_token_id": 308, "vision_end_token_id": 309}


def is_moe(text: Mapping[str, Any]) -> bool:
    return "num_experts" in text


def build(text: Mapping[str, Any], seed: int = 11) -> Any:
    """A model with random parameters, in evaluation mode and fp32."""
    torch.manual_seed(seed)
    text = {**BASE, **text}
    kinds = (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration)
    config_class, model_class = kinds if is_moe(text) else (Qwen3_5Config, Qwen3_5ForConditionalGeneration)
    config = config_class(
        text_config=text, vision_config=dict(VISION), tie_word_embeddings=text["tie_word_embeddings"], **IDS
    )
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter))
        model.tie_weights()
    return model


def initial(name: str, like: Tensor) -> Tensor:
    """Deliberate values: defaults (zero norms, small matrices) would hide what is left out."""
    if name.endswith("A_log"):
        return torch.empty_like(like).uniform_(-3, 2.5)
    if name.endswith("dt_bias"):
        return torch.empty_like(like).uniform_(-4, 2)
    if name.endswith("bias"):
        return torch.randn_like(like) * 0.2
    if "norm" in name:
        plain = "linear_attn.norm" in name or "visual" in name
        return torch.randn_like(like) * 0.3 + (1.0 if plain else 0.0)
    if "embed" in name:
        return torch.randn_like(like)
    fan_in = like.shape[-1] if like.dim() < 4 else like[0].numel()
    return torch.randn_like(like) * (fan_in**-0.5)


def save(model: Any, directory: Path, *, mtp: bool = True) -> dict[str, Tensor]:
    """Save as transformers does, with MTP tensors of the same dtype added; what was added."""
    model.save_pretrained(directory)
    added = mtp_tensors(model.config.text_config) if mtp else {}
    added = {name: tensor.to(model.dtype) for name, tensor in added.items()}
    if added:
        tensors = load_file(directory / "model.safetensors")
        save_file({**tensors, **added}, directory / "model.safetensors", metadata={"format": "pt"})
    return added


def mtp_tensors(c: Any) -> dict[str, Tensor]:
    torch.manual_seed(23)
    h, heads, kv, dim = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
    shapes = {
        "fc": (h, 2 * h),
        "pre_fc_norm_embedding": (h,),
        "pre_fc_norm_hidden": (h,),
        "norm": (h,),
        "layers.0.input_layernorm": (h,),
        "layers.0.post_attention_layernorm": (h,),
        "layers.0.self_attn.q_proj": (2 * heads * dim, h),
        "layers.0.self_attn.k_proj": (kv * dim, h),
        "layers.0.self_attn.v_proj": (kv * dim, h),
        "layers.0.self_attn.o_proj": (h, heads * dim),
        "layers.0.self_attn.q_norm": (dim,),
        "layers.0.self_attn.k_norm": (dim,),
    }
    out = {f"mtp.{name}.weight": shape for name, shape in shapes.items()}
    mlp = "mtp.layers.0.mlp."
    if getattr(c, "num_experts", None):
        inner, shared = c.moe_intermediate_size, c.shared_expert_intermediate_size
        out |= {
            f"{mlp}gate.weight": (c.num_experts, h),
            f"{mlp}experts.gate_up_proj": (c.num_experts, 2 * inner, h),
            f"{mlp}experts.down_proj": (c.num_experts, h, inner),
            f"{mlp}shared_expert.gate_proj.weight": (shared, h),
            f"{mlp}shared_expert.up_proj.weight": (shared, h),
            f"{mlp}shared_expert.down_proj.weight": (h, shared),
            f"{mlp}shared_expert_gate.weight": (1, h),
        }
    else:
        inner = c.intermediate_size
        out |= {f"{mlp}{name}_proj.weight": (inner, h) for name in ("gate", "up")}
        out[f"{mlp}down_proj.weight"] = (h, inner)
    return {name: initial(name, torch.empty(shape)) for name, shape in out.items()}


def foreign(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters as transformers saves them: queries beside their gates, experts one by one, taps last."""
    out = {}
    blocks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in parameters.items():
        if match := BLOCK.match(name):
            stem = "mtp.layers.0." if match[1] == "mtp" else f"model.language_model.layers.{match[2]}."
            blocks.setdefault(stem, {})[name[match.end() :]] = tensor
        else:
            table = {**names.TOP, names.HEAD[0]: names.HEAD[1], **names.MTP_TOP}
            prefix = "model.language_model." if name in names.TOP else ""
            out[prefix + table[name]] = tensor
    for stem, block in blocks.items():
        out |= {stem + name: tensor for name, tensor in _foreign_block(block, fused=stem == "mtp.layers.0.").items()}
    return out


BLOCK = re.compile(r"(text|mtp)/layers/(\d+)/")


def _foreign_block(block: dict[str, Tensor], *, fused: bool) -> dict[str, Tensor]:
    plain = {**names.BLOCK, **names.ATTENTION, **names.GDN, **names.MLP, **names.MOE}
    out = {plain[name]: tensor for name, tensor in block.items() if name in plain}
    if "attention/query" in block:
        pair = [
            block[f"attention/{name}"].unflatten(0, (BASE["num_attention_heads"], -1)) for name in ("query", "gate")
        ]
        out[names.QUERY_AND_GATE] = torch.cat(pair, dim=1).flatten(0, 1)
    if "gdn/query" in block:
        out[names.QUERY_KEY_VALUE] = torch.cat([block[f"gdn/{name}"] for name in ("query", "key", "value")])
        out[names.CONVOLUTION] = block["gdn/convolution"].t()[:, None].contiguous()
        out |= {names.A_LOG: block["gdn/a_log"], names.DT_BIAS: block["gdn/dt_bias"]}
    experts = sum(name.startswith("moe/experts/") for name in block) // 3
    found = {part: [block[f"moe/experts/{e}/{part}"] for e in range(experts)] for part in ("gate", "up", "down")}
    if experts and fused:
        pairs = zip(found["gate"], found["up"], strict=True)
        out[names.FUSED_GATE_UP] = torch.stack([torch.cat(pair) for pair in pairs])
        out[names.FUSED_DOWN] = torch.stack(found["down"])
    elif experts:
        out |= {names.split_expert(e, part): x for part, all_of in found.items() for e, x in enumerate(all_of)}
    return out


@torch.no_grad()
def mtp(model: Any, ids: list[int], steps: int) -> list[tuple[Tensor, Tensor]]:
    """(outputs, logits) of transformers' MTP pass over a prompt and of each chained step after it.

    ``model`` was loaded from a folder: the tensors of the block are looked for beside it.
    """
    main = MtpModel.from_pretrained(model)
    text = torch.tensor([ids])
    hidden = final_hidden(model, ids[:-1])[None]
    cache = MtpCache(config=model.config.get_mtp_config())
    out, count = [], text.shape[1] - 1
    fed, positions = text[:, 1:], torch.arange(1, count + 1)[None]
    for _ in range(steps + 1):
        read = main.forward_layer(0, hidden, positions, cache, input_ids=fed)
        scores = model.lm_head(read)
        out.append((read[0], scores[0]))
        hidden, fed, positions = read[:, -1:], scores[:, -1:].argmax(-1), positions[:, -1:] + 1
    return out


def run_mtp(block: Any, config: Any, ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs, logits) of our block over a prompt, in two pieces; ``hidden`` is the model's, without the last row."""
    cache, pages = SimpleCache(mtp_geometry(config), 8), [5, 2, 7]
    outputs, count = [], len(ids) - 1
    for start, end in ((0, count // 3), (count // 3, count)):
        step = make_step([ids[start:end]], frontiers=[start], pages=[pages])
        outputs.append(block.forward(step, torch.tensor(ids[start + 1 : end + 1]), hidden[start:end], cache))
    whole = torch.cat(outputs)
    return whole, block.logits(whole)


@torch.no_grad()
def final_hidden(model: Any, ids: list[int]) -> Tensor:
    """[T, N] after the final norm."""
    return model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]


@torch.no_grad()
def logits(model: Any, ids: Sequence[int]) -> Tensor:
    """[T, V]."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


def prompt(count: int, seed: int = 3) -> list[int]:
    # media placeholders would stand for images
    return torch.randint(0, 308, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def opened(
    path: Path | str, *, reference: bool = True, options: Mapping[str, Any] | None = None, **runtime: Any
) -> Any:
    """Family, checkpoint, weights, model and runtime of a checkpoint on disk."""
    composed = compose({"qwen35"})
    family, checkpoint = open_checkpoint(str(path), composed)
    run = Runtime(
        device=torch.device("cpu"),
        dtype=torch.float32,
        reference=reference,
        max_context=runtime.get("max_context", 2048),
        options=options or {},
    )
    weights = CheckpointWeights(checkpoint, composed.weight_formats, run)
    return family, checkpoint, weights, family.build(checkpoint, weights, run), run


def load(path: Path | str, *, rows: int = 4, max_tokens: int = 1024, **how: Any) -> Rig:
    family, checkpoint, _, model, run = opened(path, **how)
    layout = family.state_layout(checkpoint.config, run)
    return Rig(model, family.kv_geometry(checkpoint.config), layout, rows=rows, max_tokens=max_tokens)


def edit_config(directory: Path, change: Any) -> None:
    """Rewrite config.json with what ``change`` does to it."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))
