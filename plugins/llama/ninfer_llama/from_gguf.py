"""A GGUF file of architecture ``llama`` in this family's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError, ImportPlan, Source

from . import config as llama_config
from . import names

PREFIX = "llama."
ROPE_FACTORS = "rope_freqs.weight"

# keys that only have a meaning here when they say something else
MUST_BE: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "use_parallel_residual": (False,),
    "residual_scale": (1,),
    "embedding_scale": (1,),
    "logit_scale": (1,),
}
READ = frozenset(
    (
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",
        "vocab_size",
    )
)
# rope.scaling.* beside type and factor describe yarn, which is refused by its type
NEUTRAL = frozenset(("tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"))


def plan(source: Source) -> ImportPlan:
    """Config and recipes; ArtifactError names the key or tensor that cannot be represented."""
    raw = read(source)
    foreign = llama_config.drop_foreign_tokens(raw)
    c = llama_config.read(raw, source.path)
    query_rows = rotated_rows(c.num_attention_heads, c.head_dim)
    key_rows = rotated_rows(c.num_key_value_heads, c.head_dim)

    def name_of(name: str) -> str:
        tied = name == "text/output_head" and c.tie_word_embeddings
        return names.gguf_name("text/token_embedding" if tied else name)

    def rows_of(name: str) -> tuple[int, ...] | None:
        stem = name.removesuffix("_bias")
        if stem.endswith("attention/query"):
            return query_rows
        return key_rows if stem.endswith("attention/key") else None

    unknown = [
        key for key in source.config if key.startswith(PREFIX) and key[len(PREFIX) :] not in READ | NEUTRAL | {*MUST_BE}
    ]
    return ImportPlan(
        architecture="LlamaForCausalLM",
        config=llama_config.to_dict(c),
        parameters=names.recipes(source, c, name_of, rows_of, ignored=lambda tensor: tensor == ROPE_FACTORS),
        warnings=tuple(
            f"{source.path}: {said}" for said in (*(f"unknown key {key!r} is ignored" for key in unknown), *foreign)
        ),
    )


def rotated_rows(heads: int, head_dim: int) -> tuple[int, ...]:
    """Stored row of each wanted row of a query or key projection.

    llama.cpp stores the pairs of a head side by side (rows 2j, 2j+1); here they are half a head apart (rows j,
    j + head_dim/2).
    """
    half = head_dim // 2
    return tuple(head * head_dim + 2 * j + side for head in range(heads) for side in range(2) for j in range(half))


def read(source: Source) -> dict[str, Any]:
    """The metadata as the artifact's text config, values still to be checked."""
    meta = {key[len(PREFIX) :]: value for key, value in source.config.items() if key.startswith(PREFIX)}
    for key, accepted in MUST_BE.items():
        if key in meta and meta[key] not in accepted:
            raise ArtifactError(
                f"{source.path}: {PREFIX}{key} {meta[key]!r} is not implemented; accepted: {accepted[0]}"
            )
    heads = _required(source, meta, "attention.head_count")
    hidden = _required(source, meta, "embedding_length")
    return {
        "hidden_size": hidden,
        "vocab_size": _vocab_size(source, meta),
        "num_hidden_layers": _required(source, meta, "block_count"),
        "max_position_embeddings": _required(source, meta, "context_length"),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "rms_norm_eps": _required(source, meta, "attention.layer_norm_rms_epsilon"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("attention.head_count_kv", heads),
        "head_dim": _head_dim(source, meta, hidden, heads),
        "intermediate_size": _required(source, meta, "feed_forward_length"),
        "rope_theta": meta.get("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(source, meta),
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in source.tensors,
        "bos_token_id": source.config.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.config.get("tokenizer.ggml.eos_token_id"),
    }


def _required(source: Source, meta: Mapping[str, Any], key: str) -> Any:
    if key not in meta:
        raise ArtifactError(f"{source.path}: {PREFIX}{key} is missing")
    return meta[key]


def _vocab_size(source: Source, meta: Mapping[str, Any]) -> Any:
    table = source.tensors.get("token_embd.weight")
    # the metadata's number may leave out padding rows, or be absent
    return table.shape[0] if table is not None and table.shape else meta.get("vocab_size", 0)


def _head_dim(source: Source, meta: Mapping[str, Any], hidden: Any, heads: Any) -> Any:
    if not (type(hidden) is int and type(heads) is int and heads > 0):
        # per-layer lists and wrong types are named by the config check
        return 1
    dim = meta.get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.get(key, dim) != dim:
            raise ArtifactError(f"{source.path}: {PREFIX}{key} {meta[key]!r} is not implemented; accepted: {dim}")
    return dim


def _scaling(source: Source, meta: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = meta.get("rope.scaling.type", "linear" if "rope.scale_linear" in meta else "none")
    factor = meta.get("rope.scaling.factor", meta.get("rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise ArtifactError(
            f"{source.path}: {PREFIX}rope.scaling.type {kind!r} is not implemented; accepted: none, linear"
        )
    factors = _stored_factors(source)
    linear = kind == "linear" and factor != 1
    if factors and linear:
        raise ArtifactError(f"{source.path}: {ROPE_FACTORS} together with linear rope scaling is not implemented")
    if factors:
        return {"rope_type": "divided", "factors": factors}
    return {"rope_type": "linear", "factor": factor} if linear else None


def _stored_factors(source: Source) -> list[float] | None:
    """The divisors of the frequencies, when the file has some other than ones."""
    if ROPE_FACTORS not in source.tensors:
        return None
    tensor = source.tensors[ROPE_FACTORS].read()
    if tensor.format != "fp32" or len(tensor.shape) != 1:
        raise ArtifactError(
            f"{source.path}: tensor {ROPE_FACTORS!r} is {tensor.format} of shape {list(tensor.shape)}; "
            "expected an fp32 vector"
        )
    factors: list[float] = tensor.data.numpy().view("<f4").tolist()
    return None if all(factor == 1 for factor in factors) else factors
