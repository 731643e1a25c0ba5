"""config.json of a Hugging Face checkpoint as the artifact's text config.

A known key with a value that is not implemented is refused by name; an unknown key is a warning that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError

from .config import DENSE, MODEL_TYPES, MOE

Values = tuple[Any, ...]

ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": DENSE,
    "Qwen3_5ForCausalLM": DENSE,
    "Qwen3_5MoeForConditionalGeneration": MOE,
    "Qwen3_5MoeForCausalLM": MOE,
}

COMMON = (
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
OF_KIND = {
    DENSE: ("intermediate_size",),
    MOE: ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
}

# keys that only have a meaning here when they say something else
MUST_BE: dict[str, Values] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu", None),
    "mamba_ssm_dtype": ("float32",),
    "mlp_only_layers": ([], None),
    "mtp_num_hidden_layers": (0, 1, None),
    "mtp_use_dedicated_embeddings": (False, None),
    "num_mtp_layers": (0, 1, None),
    "mtp_layer_types": (["full_attention"], None),
    "norm_topk_prob": (True, None),
    "decoder_sparse_step": (1, None),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
}

# keys without a meaning for text inference
NEUTRAL = frozenset(
    (
        "architectures",
        "_name_or_path",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "image_token_id",
        "initializer_range",
        "is_decoder",
        "label2id",
        "language_model_only",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "video_token_id",
        "vision_end_token_id",
        "vision_start_token_id",
    )
)
ROPE_KEYS = frozenset(("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"))
TEXT_KEYS = (
    frozenset((*COMMON, *OF_KIND[DENSE], *OF_KIND[MOE], *MUST_BE))
    | NEUTRAL
    | ROPE_KEYS
    | {"model_type", "head_dim", "rms_norm_eps", "layer_types", "full_attention_interval", "tie_word_embeddings"}
)
TOP_KEYS = NEUTRAL | {"model_type", "text_config", "vision_config", "tie_word_embeddings", "quantization_config"}

ROPE_MEMBERS = frozenset(
    ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
)
YARN_MEMBERS = frozenset(("factor", "original_max_position_embeddings"))
# what YaRN is computed with; other values of these are not implemented
YARN_MUST_BE: dict[str, Values] = {
    "beta_fast": (32, None),
    "beta_slow": (1, None),
    "truncate": (True, None),
    "attention_factor": (None,),
    "mscale": (None,),
    "mscale_all_dim": (None,),
}


def read(config: Mapping[str, Any], architecture: str, place: str) -> tuple[dict[str, Any], list[str]]:
    """The text config, values still to be checked, and warnings about unknown keys."""
    kind = ARCHITECTURES[architecture]
    text, warnings = _text(config, kind, place)
    for key, accepted in MUST_BE.items():
        if key in text and not any(_same(text[key], value) for value in accepted):
            raise ArtifactError(f"{place}: {key} {text[key]!r} is not implemented; accepted: {_spell(accepted)}")
    out: dict[str, Any] = {"architectures": [kind], "model_type": MODEL_TYPES[kind]}
    for key in (*COMMON, *OF_KIND[kind]):
        if text.get(key) is None:
            raise ArtifactError(f"{place}: {key} is missing")
        out[key] = text[key]
    out["rms_norm_eps"] = 1e-6 if text.get("rms_norm_eps") is None else text["rms_norm_eps"]
    out["head_dim"] = 256 if text.get("head_dim") is None else text["head_dim"]
    out["layer_types"] = _layer_types(text, place)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    out["tie_word_embeddings"] = False if tied is None else tied
    rope, scaling, ropes = _rope(text, place)
    out["rope_parameters"] = rope
    if scaling is not None:
        out["rope_scaling"] = scaling
    if "linear_attention" not in out["layer_types"]:
        for key in [key for key in out if key.startswith("linear_")]:
            del out[key]
    return out, warnings + ropes


def _text(config: Mapping[str, Any], kind: str, place: str) -> tuple[Mapping[str, Any], list[str]]:
    """The keys of the text model, wherever they are, with the names of unknown ones."""
    nested = config.get("text_config")
    if nested is None:
        text, known, prefix = config, TEXT_KEYS | TOP_KEYS, ""
        warnings: list[str] = []
    elif isinstance(nested, Mapping):
        text, known, prefix = nested, TEXT_KEYS, "text_config."
        warnings = [_unknown(place, key) for key in config if key not in TOP_KEYS]
    else:
        raise ArtifactError(f"{place}: text_config is {nested!r:.80}; expected an object")
    moe = "_moe" if kind == MOE else ""
    wanted = {"": (f"qwen3_5{moe}_text", f"qwen3_5{moe}"), "text_config.": (f"qwen3_5{moe}_text",)}[prefix]
    if text.get("model_type", wanted[0]) not in wanted:
        raise ArtifactError(
            f"{place}: {prefix}model_type {text['model_type']!r} is not implemented; accepted: {_spell(wanted)}"
        )
    return text, [*warnings, *(_unknown(place, prefix + key) for key in text if key not in known)]


def _layer_types(text: Mapping[str, Any], place: str) -> Any:
    """As listed, else one full attention layer in every ``full_attention_interval``."""
    if text.get("layer_types") is not None:
        return text["layer_types"]
    interval, layers = text.get("full_attention_interval", 4), text["num_hidden_layers"]
    if type(interval) is not int or interval < 1:
        raise ArtifactError(f"{place}: full_attention_interval is {interval!r}; expected a whole number above 0")
    if type(layers) is not int or not 0 < layers <= 4096:
        # the config check names it
        return []
    return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]


def _rope(text: Mapping[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any] | None, list[str]]:
    """``rope_parameters`` and the scaling of the artifact's config, from wherever the checkpoint keeps them."""
    key = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
    given = text.get(key) or {}
    if not isinstance(given, Mapping):
        raise ArtifactError(f"{place}: {key} is {given!r:.80}; expected an object")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise ArtifactError(f"{place}: {key}.rope_type {kind!r} is not implemented; accepted: default, yarn")
    if given.get("mrope_interleaved", True) is not True:
        raise ArtifactError(
            f"{place}: {key}.mrope_interleaved {given['mrope_interleaved']!r} is not implemented; accepted: True"
        )
    rope = {
        "rope_theta": given.get("rope_theta", text.get("rope_theta")),
        "partial_rotary_factor": given.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25)),
        "mrope_section": given.get("mrope_section", [11, 11, 10]),
    }
    if rope["rope_theta"] is None:
        raise ArtifactError(f"{place}: {key}.rope_theta is missing")
    known = ROPE_MEMBERS | (YARN_MEMBERS | {*YARN_MUST_BE} if kind == "yarn" else frozenset())
    warnings = [_unknown(place, f"{key}.{name}") for name in given if name not in known]
    return rope, _yarn(given, key, text, place) if kind == "yarn" else None, warnings


def _yarn(given: Mapping[str, Any], key: str, text: Mapping[str, Any], place: str) -> dict[str, Any]:
    for name, accepted in YARN_MUST_BE.items():
        if name in given and given[name] not in accepted:
            raise ArtifactError(
                f"{place}: {key}.{name} {given[name]!r} is not implemented; accepted: {_spell(accepted)}"
            )
    if given.get("factor") is None:
        raise ArtifactError(f"{place}: {key}.factor is missing")
    original = given.get("original_max_position_embeddings", text["max_position_embeddings"])
    return {"rope_type": "yarn", "factor": given["factor"], "original_max_position_embeddings": original}


def _same(found: Any, accepted: Any) -> bool:
    """Equal, and a boolean only to a boolean."""
    return bool(found == accepted) and isinstance(found, bool) == isinstance(accepted, bool)


def _unknown(place: str, key: str) -> str:
    return f"{place}: unknown key {key!r} is ignored"


def _spell(values: Values) -> str:
    return " or ".join("null" if value is None else str(value) for value in values)
