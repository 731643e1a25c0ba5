"""The logical parameters, their shapes, and what Hugging Face and GGUF call them."""

from __future__ import annotations

from collections.abc import Callable

from ninfer_core.api import ArtifactError, Recipe, Source

from .config import LlamaConfig

Shape = tuple[int, ...]

# logical stem, Hugging Face module, GGUF stem
TOP = (
    ("text/token_embedding", "model.embed_tokens", "token_embd"),
    ("text/final_norm", "model.norm", "output_norm"),
    ("text/output_head", "lm_head", "output"),
)
LAYER = (
    ("input_norm", "input_layernorm", "attn_norm"),
    ("post_attention_norm", "post_attention_layernorm", "ffn_norm"),
    ("attention/query", "self_attn.q_proj", "attn_q"),
    ("attention/key", "self_attn.k_proj", "attn_k"),
    ("attention/value", "self_attn.v_proj", "attn_v"),
    ("attention/output", "self_attn.o_proj", "attn_output"),
    ("mlp/gate", "mlp.gate_proj", "ffn_gate"),
    ("mlp/up", "mlp.up_proj", "ffn_up"),
    ("mlp/down", "mlp.down_proj", "ffn_down"),
)


def inventory(c: LlamaConfig) -> dict[str, Shape]:
    """Every logical parameter with its shape. A tied head is the embedding under a second name."""
    out: dict[str, Shape] = {
        "text/token_embedding": (c.vocab_size, c.hidden_size),
        "text/final_norm": (c.hidden_size,),
        "text/output_head": (c.vocab_size, c.hidden_size),
    }
    layer = layer_shapes(c)
    for i in range(c.num_hidden_layers):
        out |= {f"text/layers/{i}/{name}": shape for name, shape in layer.items()}
    return out


def layer_shapes(c: LlamaConfig) -> dict[str, Shape]:
    """The parameters of one layer, by their name within it."""
    hidden, inner = c.hidden_size, c.intermediate_size
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    out: dict[str, Shape] = {
        "input_norm": (hidden,),
        "post_attention_norm": (hidden,),
        "attention/query": (queries, hidden),
        "attention/key": (keys, hidden),
        "attention/value": (keys, hidden),
        "attention/output": (hidden, queries),
        "mlp/gate": (inner, hidden),
        "mlp/up": (inner, hidden),
        "mlp/down": (hidden, inner),
    }
    for group, biased in (("attention/", c.attention_bias), ("mlp/", c.mlp_bias)):
        if biased:
            out |= {f"{name}_bias": shape[:1] for name, shape in out.items() if name.startswith(group)}
    return out


def recipes(
    source: Source,
    c: LlamaConfig,
    name_of: Callable[[str], str],
    rows_of: Callable[[str], tuple[int, ...] | None] = lambda name: None,
    ignored: Callable[[str], bool] = lambda name: False,
) -> dict[str, Recipe]:
    """One recipe per logical parameter, every tensor's presence and shape checked; leftovers are refused by name."""
    out: dict[str, Recipe] = {}
    for name, shape in inventory(c).items():
        tensor = name_of(name)
        if tensor not in source.tensors:
            raise ArtifactError(f"{source.path}: tensor {tensor!r} is missing")
        found = tuple(source.tensors[tensor].shape)
        if found != shape:
            raise ArtifactError(f"{source.path}: tensor {tensor!r} has shape {list(found)}; expected {list(shape)}")
        out[name] = Recipe(tensors=(tensor,), shape=shape, rows=rows_of(name))
    used = {tensor for recipe in out.values() for tensor in recipe.tensors}
    left = [tensor for tensor in source.tensors if tensor not in used and not ignored(tensor)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ArtifactError(f"{source.path}: tensor {left[0]!r}{more} is not part of a llama model")
    return out


def huggingface_name(name: str) -> str:
    """``text/layers/3/attention/query_bias`` -> ``model.layers.3.self_attn.q_proj.bias``."""
    return _foreign(name, 1, "model.layers.{}.")


def gguf_name(name: str) -> str:
    """``text/layers/3/attention/query_bias`` -> ``blk.3.attn_q.bias``."""
    return _foreign(name, 2, "blk.{}.")


def _foreign(name: str, column: int, prefix: str) -> str:
    stem, suffix = (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")
    for row in TOP:
        if row[0] == stem:
            return f"{row[column]}.{suffix}"
    _, _, index, inner = stem.split("/", 3)
    for row in LAYER:
        if row[0] == inner:
            return f"{prefix.format(index)}{row[column]}.{suffix}"
    raise KeyError(name)
