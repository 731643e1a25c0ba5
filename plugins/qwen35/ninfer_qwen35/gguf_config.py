"""The metadata of a GGUF file as the artifact's text config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError, Source

from .config import DENSE, MODEL_TYPES, MOE

ARCHITECTURES = {"qwen35": DENSE, "qwen35moe": MOE}

REQUIRED = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
OF_KIND = {
    DENSE: {"intermediate_size": "feed_forward_length"},
    MOE: {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
}
# keys that only have a meaning here when they say something else
MUST_BE: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (1.0, 0.0),
    "expert_gating_func": (1,),  # softmax
    "nextn_predict_layers": (0, 1),
    "rope.mrope_interleaved": (True,),
    "ssm.v_head_reordered": (True,),
}
READ = frozenset(
    (
        *REQUIRED.values(),
        *OF_KIND[DENSE].values(),
        *OF_KIND[MOE].values(),
        *MUST_BE,
        "block_count",
        "attention.value_length",
        "full_attention_interval",
        "rope.dimension_count",
        "rope.dimension_sections",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "ssm.inner_size",
        "vocab_size",
        "tensor_data_layout",
    )
)


def read(source: Source) -> tuple[dict[str, Any], list[str]]:
    """The text config, values still to be checked, and warnings about unknown keys."""
    prefix, kind = f"{source.architecture}.", ARCHITECTURES[source.architecture]
    meta = Metadata(source, prefix)
    for key in source.config:
        if key.startswith("prism."):
            raise ArtifactError(f"{source.path}: {key}: rotated weights are not implemented for GGUF files")
    for key, accepted in MUST_BE.items():
        if meta.get(key, accepted[0]) not in accepted:
            raise ArtifactError(
                f"{source.path}: {prefix}{key} {meta.get(key)!r} is not implemented; accepted: {accepted[0]}"
            )
    out: dict[str, Any] = {"architectures": [kind], "model_type": MODEL_TYPES[kind]}
    out |= {ours: meta.required(theirs) for ours, theirs in (REQUIRED | OF_KIND[kind]).items()}
    layers = meta.whole("block_count") - meta.get("nextn_predict_layers", 0)
    interval = meta.whole("full_attention_interval", 4)
    out["num_hidden_layers"] = layers
    out["layer_types"] = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    table = source.tensors.get("token_embd.weight")
    # the metadata's number may leave out padding rows, or be absent
    out["vocab_size"] = table.shape[0] if table is not None and table.shape else meta.get("vocab_size", 0)
    out["tie_word_embeddings"] = "output.weight" not in source.tensors
    out["linear_value_head_dim"] = meta.share("ssm.inner_size", "ssm.time_step_rank")
    if meta.get("attention.value_length", out["head_dim"]) != out["head_dim"]:
        raise ArtifactError(
            f"{source.path}: {prefix}attention.value_length {meta.get('attention.value_length')!r} is not implemented; "
            f"accepted: {out['head_dim']}"
        )
    out["rope_parameters"], scaling = _rope(meta, out["head_dim"])
    if scaling is not None:
        out["rope_scaling"] = scaling
    if "linear_attention" not in out["layer_types"]:
        out = {key: value for key, value in out.items() if not key.startswith("linear_")}
    unknown = [key for key in source.config if key.startswith(prefix) and key[len(prefix) :] not in READ]
    return out, [f"{source.path}: unknown key {key!r} is ignored" for key in unknown]


class Metadata:
    """The keys of one architecture."""

    def __init__(self, source: Source, prefix: str) -> None:
        self.path, self.prefix, self._config = source.path, prefix, source.config

    def get(self, key: str, default: Any = None) -> Any:
        return self._config.get(self.prefix + key, default)

    def required(self, key: str) -> Any:
        found = self.get(key)
        if found is None:
            raise ArtifactError(f"{self.path}: {self.prefix}{key} is missing")
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        found = self.get(key, default) if default is not None else self.required(key)
        if type(found) is not int or not 0 < found <= 4096:
            raise ArtifactError(f"{self.path}: {self.prefix}{key} is {found!r}; expected a whole number from 1 to 4096")
        return found

    def share(self, key: str, of: str) -> int:
        whole, parts = self.required(key), self.required(of)
        if type(whole) is not int or type(parts) is not int or parts < 1 or whole % parts:
            raise ArtifactError(f"{self.path}: {self.prefix}{key} {whole!r} is not a multiple of {of} {parts!r}")
        return whole // parts


def _rope(meta: Metadata, head_dim: Any) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    sections, rotated = meta.required("rope.dimension_sections"), meta.required("rope.dimension_count")
    if not isinstance(sections, list) or len(sections) not in (3, 4) or any(sections[3:]):
        raise ArtifactError(
            f"{meta.path}: {meta.prefix}rope.dimension_sections is {sections!r}; expected three numbers and a 0"
        )
    if not all(type(n) is int and n > 0 for n in (rotated, head_dim)):
        raise ArtifactError(f"{meta.path}: {meta.prefix}rope.dimension_count is {rotated!r}; expected a whole number")
    rope = {
        "rope_theta": meta.required("rope.freq_base"),
        "partial_rotary_factor": rotated / head_dim,
        "mrope_section": sections[:3],
    }
    kind = meta.get("rope.scaling.type", "none")
    if kind == "none":
        return rope, None
    if kind != "yarn":
        raise ArtifactError(
            f"{meta.path}: {meta.prefix}rope.scaling.type {kind!r} is not implemented; accepted: none, yarn"
        )
    original = meta.required("rope.scaling.original_context_length")
    factor = meta.required("rope.scaling.factor")
    return rope, {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
