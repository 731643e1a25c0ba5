"""The artifact's text config: a closed set of keys (``spec/artifact.md`` §7), checked before anything is built.

One key goes beyond that list: ``rope_scaling``, for a Hugging Face checkpoint whose config asks for YaRN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ninfer_core.api import ArtifactError

DENSE, MOE = "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"
MODEL_TYPES = {DENSE: "qwen3_5_text", MOE: "qwen3_5_moe_text"}
MTP_ARCHITECTURES = {DENSE: "Qwen3_5MTP", MOE: "Qwen3_5MoeMTP"}

Count = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
Positive = Annotated[float, Meta(gt=0)]
LayerType = Literal["full_attention", "linear_attention"]


class RopeParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rope_theta: Positive
    partial_rotary_factor: Annotated[float, Meta(gt=0, le=1)]
    mrope_section: tuple[Count, Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


class YarnScaling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rope_type: Literal["yarn"]
    factor: Annotated[float, Meta(ge=1)]
    original_max_position_embeddings: Count  # tokens


class Qwen35Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    architectures: tuple[Literal["Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"]]
    model_type: Literal["qwen3_5_text", "qwen3_5_moe_text"]
    hidden_size: Count
    vocab_size: Count
    num_hidden_layers: Annotated[int, Meta(ge=1, le=4096)]
    max_position_embeddings: Count  # tokens
    tie_word_embeddings: bool
    rms_norm_eps: Positive
    layer_types: tuple[LayerType, ...]
    # attention; also the geometry of the MTP block
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: YarnScaling | None = None
    # Gated DeltaNet
    linear_num_key_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel_dim: Count | None = None
    # dense
    intermediate_size: Count | None = None
    # mixture of experts
    num_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    shared_expert_intermediate_size: Count | None = None

    @property
    def architecture(self) -> str:
        return self.architectures[0]

    @property
    def is_moe(self) -> bool:
        return self.architecture == MOE

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "full_attention")

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "linear_attention")

    @property
    def native_context(self) -> int:
        """The trained window in tokens; a config that asks for YaRN may name a longer one as its maximum."""
        scaling = self.rope_scaling
        return scaling.original_max_position_embeddings if scaling is not None else self.max_position_embeddings

    @property
    def attention(self) -> Attention:
        """The attention geometry; ArtifactError where the config has none."""
        if self.rope_parameters is None:
            raise ArtifactError("text config: num_attention_heads is missing")
        return Attention(
            heads=_present(self.num_attention_heads),
            kv_heads=_present(self.num_key_value_heads),
            head_dim=_present(self.head_dim),
            rope=self.rope_parameters,
        )

    @property
    def gdn(self) -> Gdn:
        return Gdn(
            key_heads=_present(self.linear_num_key_heads),
            key_dim=_present(self.linear_key_head_dim),
            value_heads=_present(self.linear_num_value_heads),
            value_dim=_present(self.linear_value_head_dim),
            taps=_present(self.linear_conv_kernel_dim),
        )


class Attention(Struct, frozen=True, kw_only=True):
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeParameters

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rope.partial_rotary_factor)


class Gdn(Struct, frozen=True, kw_only=True):
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    taps: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width


ATTENTION_KEYS = ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters")
GDN_KEYS = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
DENSE_KEYS = ("intermediate_size",)
MOE_KEYS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")


def read(config: Mapping[str, Any], place: str = "text config") -> Qwen35Config:
    """The checked config; ArtifactError names the key, its value's fault and what would be accepted."""
    unknown = sorted(set(config) - set(Qwen35Config.__struct_fields__))
    if unknown:
        # as repr escapes it: the key is whatever the file says
        raise ArtifactError(f'{place}: unknown member "{repr(unknown[0])[1:-1]}"')
    try:
        c = msgspec.convert(dict(config), Qwen35Config)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{place}: {_sentence(str(error))}") from None
    _check_groups(c, place)
    _check_finite(c, place)
    if len(c.layer_types) != c.num_hidden_layers:
        raise ArtifactError(
            f"{place}: layer_types names {len(c.layer_types)} layers; num_hidden_layers is {c.num_hidden_layers}"
        )
    if c.model_type != MODEL_TYPES[c.architecture]:
        raise ArtifactError(
            f"{place}: model_type {c.model_type!r} does not go with {c.architecture}; "
            f"expected {MODEL_TYPES[c.architecture]!r}"
        )
    _check_multiple(c, place, "num_attention_heads", "num_key_value_heads")
    _check_multiple(c, place, "linear_num_value_heads", "linear_num_key_heads")
    if c.is_moe and _present(c.num_experts_per_tok) > _present(c.num_experts):
        raise ArtifactError(f"{place}: num_experts_per_tok {c.num_experts_per_tok} exceeds num_experts {c.num_experts}")
    if c.rope_parameters is not None:
        _check_rope(c.attention, place)
    return c


def to_dict(config: Qwen35Config) -> dict[str, Any]:
    """As ``read`` takes it and an artifact stores it: absent keys left out, floats rounded to fp32."""
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return {key: _rounded(value) for key, value in out.items() if value is not None}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def _check_groups(c: Qwen35Config, place: str) -> None:
    """Keys that come together, where they apply and nowhere else."""
    attends = bool(c.attention_layers) or c.num_attention_heads is not None
    _check_group(c, place, ATTENTION_KEYS, attends, "full attention")
    _check_group(c, place, GDN_KEYS, bool(c.gdn_layers), "linear attention")
    _check_group(c, place, DENSE_KEYS, not c.is_moe, "a dense model")
    _check_group(c, place, MOE_KEYS, c.is_moe, "experts")
    if c.rope_scaling is not None and not attends:
        raise ArtifactError(f"{place}: rope_scaling belongs to full attention, which this config does not describe")


def _check_group(c: Qwen35Config, place: str, keys: Iterable[str], wanted: bool, what: str) -> None:
    for key in keys:
        if wanted and getattr(c, key) is None:
            raise ArtifactError(f"{place}: {key} is missing")
        if not wanted and getattr(c, key) is not None:
            raise ArtifactError(f"{place}: {key} belongs to {what}, which this config does not describe")


def _check_finite(c: Qwen35Config, place: str) -> None:
    found = {"rms_norm_eps": c.rms_norm_eps}
    if c.rope_parameters is not None:
        found["rope_parameters.rope_theta"] = c.rope_parameters.rope_theta
    if c.rope_scaling is not None:
        found["rope_scaling.factor"] = c.rope_scaling.factor
    for key, value in found.items():
        if not math.isfinite(value):
            raise ArtifactError(f"{place}: {key} is {value}; expected a finite number above 0")


def _check_multiple(c: Qwen35Config, place: str, key: str, of: str) -> None:
    value, unit = getattr(c, key), getattr(c, of)
    if value is not None and unit is not None and value % unit:
        raise ArtifactError(f"{place}: {key} {value} is not a multiple of {of} {unit}")


def _check_rope(attention: Attention, place: str) -> None:
    sections, rotary = attention.rope.mrope_section, attention.rotary_dim
    if rotary % 2 or sum(sections) != rotary // 2:
        raise ArtifactError(
            f"{place}: rope_parameters.mrope_section {list(sections)} covers {sum(sections)} pairs; head_dim "
            f"{attention.head_dim} with partial_rotary_factor {attention.rope.partial_rotary_factor:g} rotates "
            f"{rotary} elements, which is {rotary / 2:g}"
        )
    try:
        interleaved_axes(sections)
    except ValueError as error:
        raise ArtifactError(f"{place}: rope_parameters.mrope_section: {error}") from None


def interleaved_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """The position axis (0 temporal, 1 height, 2 width) each rotary pair turns by: 0, 1, 2 in turn while a section
    lasts.

    ``sections``: pairs of each axis. ValueError when the pattern cannot give each axis its pairs.
    """
    temporal, height, width = sections
    axes = tuple(
        1 if r % 3 == 1 and r < 3 * height else 2 if r % 3 == 2 and r < 3 * width else 0
        for r in range(temporal + height + width)
    )
    counts = [axes.count(axis) for axis in range(3)]
    if counts != list(sections):
        raise ValueError(f"{list(sections)} cannot be interleaved; the pattern gives {counts}")
    return axes


def _present(value: int | None) -> int:
    """A value ``read`` has checked to be there."""
    assert value is not None
    return value


def _sentence(message: str) -> str:
    """msgspec's words with the key first: "hidden_size: expected `int`, got `str`"."""
    text, _, where = message.partition(" - at `$.")
    text = text[:1].lower() + text[1:]
    return f"{where.rstrip('`')}: {text}" if where else text
