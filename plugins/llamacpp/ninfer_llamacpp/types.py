"""Bodies of llama.cpp's routes as they arrive. Fields without effect are not listed: unknown members are skipped."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ResponseFormat(Struct):
    type: str


class CompletionBody(Struct):
    """``samplers``, ``n_keep``, ``min_keep``, ``id_slot`` and the parameters of absent controls are skipped."""

    prompt: str | list[Any]
    model: str | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    cache_prompt: bool | None = None  # nothing is kept between requests, so either value is honoured

    temperature: float | None = None
    top_k: int | None = None
    top_p: Unit | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None

    # controls this sampler does not have, accepted at their neutral values
    repeat_penalty: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    dynatemp_range: float | None = None
    mirostat: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    top_n_sigma: float | None = None
    n_probs: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: float | None = None
    grammar: str | None = None
    lora: list[Any] | None = None
    logit_bias: list[Any] | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    json_schema: Any = None


class TokenizeBody(Struct):
    content: str
    model: str | None = None
    parse_special: bool = True
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(Struct):
    tokens: list[int]
    model: str | None = None
