"""What llama.cpp's export makes of a tiny checkpoint, and such a file on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

P = "model.language_model."
# three value heads for each key head, as the 27B has, and rows of whole blocks
HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 32}
MODULES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
TOP = {
    f"{P}embed_tokens.weight": "token_embd.weight",
    f"{P}norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "mtp.fc.weight": "blk.4.nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "blk.4.nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "blk.4.nextn.hnorm.weight",
    "mtp.norm.weight": "blk.4.nextn.shared_head_norm.weight",
}


def tiled(x: Tensor, width: int) -> Tensor:
    """Value heads of ``width`` rows, from grouped by key head to one of each key head after the other."""
    return x.view(2, 3, width, *x.shape[1:]).transpose(0, 1).reshape(x.shape)


def exported(name: str, x: Tensor) -> list[tuple[str, Tensor]]:
    """What a file of llama.cpp holds for one tensor of the checkpoint."""
    if name in TOP:
        norm = name.startswith("mtp.pre") or name.endswith("norm.weight")
        return [(TOP[name], x + 1 if norm else x)]
    module = name.split("layers.", 1)[1].split(".", 1)[1]
    block = "blk.4." if name.startswith("mtp.") else f"blk.{name.split('layers.')[1].split('.')[0]}."
    if module == "mlp.experts.gate_up_proj":
        gate, up = x.chunk(2, dim=1)
        return [(f"{block}ffn_gate_exps.weight", gate), (f"{block}ffn_up_exps.weight", up)]
    if module == "mlp.experts.down_proj":
        return [(f"{block}ffn_down_exps.weight", x)]
    if module == "mlp.shared_expert_gate.weight":
        x = x[0]
    elif module.endswith("norm.weight") and module != "linear_attn.norm.weight":
        x = x + 1
    elif module == "linear_attn.A_log":
        x = tiled(-x.exp(), 1)
    elif module in ("linear_attn.dt_bias", "linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight"):
        x = tiled(x, 1)
    elif module == "linear_attn.in_proj_z.weight":
        x = tiled(x, 32)
    elif module == "linear_attn.in_proj_qkv.weight":
        x = torch.cat((x[:64], tiled(x[64:], 32)))
    elif module == "linear_attn.conv1d.weight":
        x = x[:, 0]
        x = torch.cat((x[:64], tiled(x[64:], 32)))
    elif module == "linear_attn.out_proj.weight":
        x = tiled(x.t(), 32).t()
    return [(block + MODULES[module], x)]


def metadata(c: dict[str, Any]) -> dict[str, Any]:
    t = c["text_config"]
    moe = "num_experts" in t
    prefix = "qwen35moe." if moe else "qwen35."
    out = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "context_length": 512,
        "embedding_length": t["hidden_size"],
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 16,
        "rope.dimension_sections": [3, 3, 2, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": 16,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 6,
        "ssm.inner_size": 192,
        "full_attention_interval": 4,
    }
    if moe:
        out |= {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 16,
            "expert_shared_feed_forward_length": 24,
        }
    else:
        out["feed_forward_length"] = 48
    return {"general.architecture": prefix[:-1]} | {prefix + key: value for key, value in out.items()}


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], **types: gguf.GGMLQuantizationType) -> str:
    """A file with this metadata and these tensors. ``types``: raw bytes given for a tensor are of this type, the dots
    of its name written ``__``."""
    writer = gguf.GGUFWriter(str(path), config["general.architecture"])
    for key, value in config.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        if key != "general.architecture":
            kinds[type(value)](key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([*"abcdefgh", "<|endoftext|>", "<|im_end|>"])
    writer.add_token_types([1] * 8 + [3] * 2)
    writer.add_token_merges([])
    for name, tensor in tensors.items():
        raw = types.get(name.replace(".", "__"))
        writer.add_tensor(name, tensor if raw is not None else tensor.contiguous().numpy(), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
