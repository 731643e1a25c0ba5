"""The logical parameters and their shapes (``spec/artifact.md`` §15.1), and what Hugging Face calls each."""

from __future__ import annotations

from .config import Gdn, Qwen35Config

Shape = tuple[int, ...]

TOP = {
    "text/token_embedding": "embed_tokens.weight",
    "text/final_norm": "norm.weight",
}
HEAD = ("text/output_head", "lm_head.weight")
MTP_TOP = {
    "mtp/input_projection": "mtp.fc.weight",
    "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
    "mtp/final_norm": "mtp.norm.weight",
}
MTP_LAYER = "mtp/layers/0/"

# parameters of a block that are one tensor of the checkpoint, by their names within it
BLOCK = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
}
ATTENTION = {
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/output": "self_attn.o_proj.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
}
QUERY_AND_GATE = "self_attn.q_proj.weight"
GDN = {
    "gdn/z": "linear_attn.in_proj_z.weight",
    "gdn/a_projection": "linear_attn.in_proj_a.weight",
    "gdn/b_projection": "linear_attn.in_proj_b.weight",
    "gdn/output": "linear_attn.out_proj.weight",
    "gdn/norm": "linear_attn.norm.weight",
}
QUERY_KEY_VALUE = "linear_attn.in_proj_qkv.weight"
A_LOG, DT_BIAS, CONVOLUTION = "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.conv1d.weight"
MLP = {
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}
MOE = {
    "moe/router": "mlp.gate.weight",
    "moe/shared_score": "mlp.shared_expert_gate.weight",
    "moe/shared/gate": "mlp.shared_expert.gate_proj.weight",
    "moe/shared/up": "mlp.shared_expert.up_proj.weight",
    "moe/shared/down": "mlp.shared_expert.down_proj.weight",
}
FUSED_GATE_UP, FUSED_DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
SPLIT_EXPERT = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def layer_prefix(i: int) -> str:
    return f"text/layers/{i}/"


def split_expert(e: int, part: str) -> str:
    """``mlp.experts.3.gate_proj.weight``."""
    return f"mlp.experts.{e}.{SPLIT_EXPERT[part]}.weight"


def inventory(c: Qwen35Config) -> dict[str, Shape]:
    """Every parameter of the text model with its shape. A tied head is the embedding under a second name."""
    out: dict[str, Shape] = {
        "text/token_embedding": (c.vocab_size, c.hidden_size),
        "text/final_norm": (c.hidden_size,),
        "text/output_head": (c.vocab_size, c.hidden_size),
    }
    shapes = {kind: block_shapes(c, kind) for kind in set(c.layer_types)}
    for i, kind in enumerate(c.layer_types):
        out |= {layer_prefix(i) + name: shape for name, shape in shapes[kind].items()}
    return out


def mtp_inventory(c: Qwen35Config) -> dict[str, Shape]:
    """Every parameter of the MTP block; embedding and head are the text model's."""
    h = c.hidden_size
    out: dict[str, Shape] = {"mtp/input_projection": (h, 2 * h)}
    out |= {f"mtp/{name}_norm": (h,) for name in ("embedding", "hidden", "final")}
    return out | {MTP_LAYER + name: shape for name, shape in block_shapes(c, "full_attention").items()}


def block_shapes(c: Qwen35Config, kind: str) -> dict[str, Shape]:
    """The parameters of one block, by their name within it."""
    h = c.hidden_size
    out: dict[str, Shape] = {"input_norm": (h,), "post_attention_norm": (h,)}
    out |= _attention(c) if kind == "full_attention" else _gdn(c.gdn, h)
    return out | (_moe(c) if c.is_moe else _mlp(c.intermediate_size or 0, h))


def _attention(c: Qwen35Config) -> dict[str, Shape]:
    geometry, h = c.attention, c.hidden_size
    queries, keys = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    return {
        "attention/query": (queries, h),
        "attention/key": (keys, h),
        "attention/gate": (queries, h),
        "attention/value": (keys, h),
        "attention/query_norm": (geometry.head_dim,),
        "attention/key_norm": (geometry.head_dim,),
        "attention/output": (h, queries),
    }


def _gdn(g: Gdn, h: int) -> dict[str, Shape]:
    return {
        "gdn/query": (g.key_width, h),
        "gdn/key": (g.key_width, h),
        "gdn/value": (g.value_width, h),
        "gdn/z": (g.value_width, h),
        "gdn/a_projection": (g.value_heads, h),
        "gdn/b_projection": (g.value_heads, h),
        "gdn/a_log": (g.value_heads,),
        "gdn/dt_bias": (g.value_heads,),
        "gdn/convolution": (g.taps, g.channels),
        "gdn/norm": (g.value_dim,),
        "gdn/output": (h, g.value_width),
    }


def _mlp(inner: int, h: int) -> dict[str, Shape]:
    return {"mlp/gate": (inner, h), "mlp/up": (inner, h), "mlp/down": (h, inner)}


def _moe(c: Qwen35Config) -> dict[str, Shape]:
    h, experts = c.hidden_size, c.num_experts or 0
    inner, shared = c.moe_intermediate_size or 0, c.shared_expert_intermediate_size or 0
    out: dict[str, Shape] = {"moe/router": (experts, h), "moe/shared_score": (1, h)}
    for e in range(experts):
        own = {"gate": (inner, h), "up": (inner, h), "down": (h, inner)}
        out |= {f"moe/experts/{e}/{name}": shape for name, shape in own.items()}
    return out | {
        "moe/shared/gate": (shared, h),
        "moe/shared/up": (shared, h),
        "moe/shared/down": (h, shared),
    }
