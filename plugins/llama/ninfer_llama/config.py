"""The artifact's text config: a closed set of keys, checked before anything is built from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ninfer_core.api import ArtifactError

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, le=1 << 31)]
Positive = Annotated[float, Meta(gt=0)]


class LinearScaling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rope_type", tag="linear"):
    """Every frequency divided by one factor."""

    factor: Positive


class Llama3Scaling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rope_type", tag="llama3"):
    """Long waves divided by a factor, short ones kept, those between blended."""

    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count


class DividedScaling(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rope_type", tag="divided"
):
    """Each frequency divided by its own factor, which is how GGUF files store Llama 3's scaling."""

    factors: tuple[Positive, ...]  # head_dim / 2


RopeScaling = LinearScaling | Llama3Scaling | DividedScaling


class LlamaConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    architectures: tuple[Literal["LlamaForCausalLM"]] = ("LlamaForCausalLM",)
    model_type: Literal["llama"] = "llama"
    hidden_size: Count
    vocab_size: Count
    num_hidden_layers: Annotated[int, Meta(ge=1, le=4096)]
    max_position_embeddings: Count  # tokens
    tie_word_embeddings: bool
    rms_norm_eps: Positive
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    rope_theta: Positive
    rope_scaling: RopeScaling | None = None
    attention_bias: bool
    mlp_bias: bool
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | tuple[TokenId, ...] | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else self.eos_token_id


def read(config: Mapping[str, Any], place: str = "text config") -> LlamaConfig:
    """The checked config; ArtifactError names the key, its value's fault and what would be accepted."""
    unknown = sorted(set(config) - set(LlamaConfig.__struct_fields__))
    if unknown:
        # as repr escapes it: the key is whatever the file says
        raise ArtifactError(f'{place}: unknown member "{repr(unknown[0])[1:-1]}"')
    try:
        c = msgspec.convert(dict(config), LlamaConfig)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{place}: {_sentence(str(error))}") from None
    for name in ("rms_norm_eps", "rope_theta"):
        if not math.isfinite(getattr(c, name)):
            raise ArtifactError(f"{place}: {name} is {getattr(c, name)}; expected a finite number above 0")
    if c.num_attention_heads % c.num_key_value_heads:
        raise ArtifactError(
            f"{place}: num_attention_heads {c.num_attention_heads} is not a multiple of num_key_value_heads "
            f"{c.num_key_value_heads}"
        )
    if c.head_dim % 2:
        raise ArtifactError(f"{place}: head_dim {c.head_dim} is odd; rotary embedding needs pairs")
    for name, ids in (("bos_token_id", (c.bos_token_id,)), ("eos_token_id", c.eos_token_ids)):
        foreign = [token for token in ids if token is not None and token >= c.vocab_size]
        if foreign:
            raise ArtifactError(f"{place}: {name} {foreign[0]} {_beyond(c.vocab_size)}")
    _check_scaling(c, place)
    return c


def drop_foreign_tokens(config: dict[str, Any]) -> list[str]:
    """Take the begin and end tokens that the vocabulary does not have out of a foreign config: such a token can never
    be drawn. One sentence for each."""
    said, size = [], config["vocab_size"]
    for name in ("bos_token_id", "eos_token_id"):
        value = config[name]
        listed = list(value) if isinstance(value, list | tuple) else [value]
        known = [token for token in listed if type(token) is not int or type(size) is not int or token < size]
        if len(known) < len(listed):
            said += [f"{name} {token} {_beyond(size)} and is ignored" for token in listed if token not in known]
            config[name] = known or None
    return said


def _beyond(size: int) -> str:
    return f"is beyond the vocabulary of {size} tokens (0 to {size - 1})"


def to_dict(config: LlamaConfig) -> dict[str, Any]:
    """As ``read`` takes it and an artifact stores it."""
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return out


def _check_scaling(c: LlamaConfig, place: str) -> None:
    scaling = c.rope_scaling
    if isinstance(scaling, DividedScaling) and len(scaling.factors) != c.head_dim // 2:
        raise ArtifactError(
            f"{place}: rope_scaling has {len(scaling.factors)} factors; head_dim {c.head_dim} needs {c.head_dim // 2}"
        )
    if isinstance(scaling, Llama3Scaling) and scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ArtifactError(
            f"{place}: rope_scaling.high_freq_factor {scaling.high_freq_factor} must be above low_freq_factor "
            f"{scaling.low_freq_factor}"
        )


def _sentence(message: str) -> str:
    """msgspec's words with the key first: "hidden_size: expected `int`, got `str`"."""
    text, _, where = message.partition(" - at `$.")
    text = text[:1].lower() + text[1:]
    return f"{where.rstrip('`')}: {text}" if where else text
