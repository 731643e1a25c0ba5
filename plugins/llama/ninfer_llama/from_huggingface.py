"""A Hugging Face folder of architecture LlamaForCausalLM in this family's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError, ImportPlan, Source

from . import config as llama_config
from . import names

REQUIRED = (
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)

# the defaults of transformers' LlamaConfig; an absent token id stays absent
DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": None,
}

# keys that only have a meaning here when they say something else
MUST_BE: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu", "swish"),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "rope_interleaved": (False, None),
    "partial_rotary_factor": (1, None),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "attention_multiplier": (None,),
    "embedding_multiplier": (1, None),
    "residual_multiplier": (1, None),
    "logits_scaling": (1, None),
}

# keys without a meaning for inference
NEUTRAL = frozenset(
    (
        "architectures",
        "_name_or_path",
        "attention_dropout",
        "auto_map",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    )
)

ROPE_KEYS = frozenset(("rope_theta", "rope_scaling", "rope_parameters"))
KNOWN = frozenset((*REQUIRED, *DEFAULTS, *MUST_BE, "num_key_value_heads", "head_dim")) | NEUTRAL | ROPE_KEYS

# the members of each kind of rope_scaling beyond its type and theta
SCALING_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def plan(source: Source) -> ImportPlan:
    """Config and recipes; ArtifactError names the key or tensor that cannot be represented."""
    place = f"{source.path}: config.json"
    raw, warnings = read(source.config, place)
    c = llama_config.read(raw, place)

    def name_of(name: str) -> str:
        tied = name == "text/output_head" and c.tie_word_embeddings
        return names.huggingface_name("text/token_embedding" if tied else name)

    def ignored(tensor: str) -> bool:
        # buffers of old checkpoints, and the copy of a tied head that some write
        return tensor.endswith("rotary_emb.inv_freq") or (c.tie_word_embeddings and tensor == "lm_head.weight")

    return ImportPlan(
        architecture="LlamaForCausalLM",
        config=llama_config.to_dict(c),
        parameters=names.recipes(source, c, name_of, ignored=ignored),
        warnings=tuple(warnings),
    )


def read(config: Mapping[str, Any], place: str) -> tuple[dict[str, Any], list[str]]:
    """config.json as the artifact's text config, values still to be checked, and warnings about what is ignored."""
    warnings = [f"{place}: unknown key {key!r} is ignored" for key in config if key not in KNOWN]
    for key, accepted in MUST_BE.items():
        if key in config and config[key] not in accepted:
            raise ArtifactError(f"{place}: {key} {config[key]!r} is not implemented; accepted: {_spell(accepted)}")
    for key in REQUIRED:
        if config.get(key) is None:
            raise ArtifactError(f"{place}: {key} is missing")
    out = {key: config[key] for key in REQUIRED}
    out |= {key: default if config.get(key) is None else config[key] for key, default in DEFAULTS.items()}
    heads = config["num_attention_heads"]
    out["num_key_value_heads"] = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    out["head_dim"] = config.get("head_dim") or _head_dim(config["hidden_size"], heads, place)
    out["rope_theta"], out["rope_scaling"], ropes = _rope(config, place)
    foreign = [f"{place}: {said}" for said in llama_config.drop_foreign_tokens(out)]
    return out, warnings + ropes + foreign


def _head_dim(hidden: Any, heads: Any, place: str) -> Any:
    if not (type(hidden) is int and type(heads) is int and heads > 0):
        # the config check names the wrong type
        return 1
    if hidden % heads:
        raise ArtifactError(f"{place}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def _rope(config: Mapping[str, Any], place: str) -> tuple[Any, dict[str, Any] | None, list[str]]:
    """theta, scaling and warnings, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``."""
    # the order transformers 5 has for a config with both
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        raise ArtifactError(f"{place}: {key} is {given!r}; expected an object")
    theta = given.get("rope_theta", config.get("rope_theta"))
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALING_KEYS:
        accepted = ", ".join(SCALING_KEYS)
        raise ArtifactError(f"{place}: {key}.rope_type {kind!r} is not implemented; accepted: {accepted}")
    if given.get("partial_rotary_factor", 1) not in (1, None):
        value = given["partial_rotary_factor"]
        raise ArtifactError(f"{place}: {key}.partial_rotary_factor {value!r} is not implemented; accepted: 1")
    members = SCALING_KEYS[kind]
    known = {*members, "rope_theta", "rope_type", "type", "partial_rotary_factor"}
    warnings = [f"{place}: unknown key '{key}.{name}' is ignored" for name in given if name not in known]
    theta = 10000.0 if theta is None else theta
    if not members:
        return theta, None, warnings
    scaling = {"rope_type": kind} | {name: given[name] for name in members if name in given}
    if kind == "llama3":
        scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    return theta, scaling, warnings


def _spell(values: tuple[Any, ...]) -> str:
    return " or ".join("null" if value is None else str(value) for value in values)
