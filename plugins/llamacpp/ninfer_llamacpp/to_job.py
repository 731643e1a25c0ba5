"""A completion body as the core's ``RawJob``."""

from __future__ import annotations

from typing import Any

from ninfer_core.api import ApiError, RawJob, SamplingRequest
from ninfer_core.api.http import invalid_value, not_supported, quoted

from .types import CompletionBody

WIDEST_TOP_K = 20  # the sampler's candidate domain
MAX_STOPS = 32
NEUTRAL = {  # field -> the only value that changes nothing
    "repeat_penalty": 1,
    "typical_p": 1,
    "tfs_z": 1,
    "dynatemp_range": 0,
    "mirostat": 0,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "n_probs": 0,
    "n_indent": 0,
}
NO_LIMIT = 1 << 30  # a negative limit: whatever the context still holds
OFF_BELOW = ("top_n_sigma", "t_max_predict_ms")  # zero or below changes nothing


def to_job(body: CompletionBody, *, vocab_tokens: int, request_id: str) -> RawJob:
    """The job. ApiError 400 for everything this server cannot do as asked."""
    refuse_unsupported(body)
    asked = body.n_predict if body.n_predict is not None else body.max_tokens
    return RawJob(
        prompt=prompt(body.prompt, vocab_tokens),
        sampling=sampling(body),
        max_tokens=NO_LIMIT if asked is not None and asked < 0 else asked,
        stops=stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
        want_progress=bool(body.return_progress and body.stream),
        request_id=request_id,
        protocol="llamacpp-completion",
    )


def prompt(wire: str | list[Any], vocab_tokens: int) -> tuple[str | tuple[int, ...], ...]:
    """Text, token ids, or both in order. An array of one prompt is that prompt; of several, it is refused."""
    if isinstance(wire, list) and len(wire) == 1 and isinstance(wire[0], (str, list)):
        return prompt(wire[0], vocab_tokens)
    if isinstance(wire, str):
        return (wire,)
    if not wire:
        raise invalid_value("prompt", wire, "a string, or an array of token ids and strings with at least one member")
    if all(isinstance(piece, str) for piece in wire) or any(isinstance(piece, (list, dict)) for piece in wire):
        text = f"One request gives one completion; 'prompt' is an array of {len(wire)} prompts."
        raise ApiError("multiple_prompts_not_supported", text, param="prompt")
    return _pieces(wire, vocab_tokens)


def _pieces(wire: list[Any], vocab_tokens: int) -> tuple[str | tuple[int, ...], ...]:
    pieces: list[str | tuple[int, ...]] = []
    run: list[int] = []
    for at, piece in enumerate(wire):
        if isinstance(piece, str):
            if run:
                pieces.append(tuple(run))
                run = []
            pieces.append(piece)
        elif isinstance(piece, int) and not isinstance(piece, bool) and 0 <= piece < vocab_tokens:
            run.append(piece)
        else:
            raise invalid_value(f"prompt[{at}]", piece, f"a string or a token id from 0 to {vocab_tokens - 1}")
    return (*pieces, tuple(run)) if run else tuple(pieces)


def sampling(body: CompletionBody) -> SamplingRequest:
    """A temperature below zero is greedy, a negative seed random, ``top_k`` at or below zero the widest set."""
    seed = body.seed
    if seed is not None and not -(1 << 63) <= seed < 1 << 63:
        raise invalid_value("seed", seed, "a whole number of 64 bits, with sign")
    return SamplingRequest(
        temperature=None if body.temperature is None else max(body.temperature, 0.0),
        top_p=body.top_p,
        top_k=None if body.top_k is None else min(max(body.top_k, 0), WIDEST_TOP_K),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=None if seed is None or seed < 0 else seed,
    )


def stops(wire: str | list[str] | None) -> tuple[str, ...]:
    """Up to 32 stop strings; an empty one stops nothing and is dropped, as llama.cpp does."""
    if isinstance(wire, list) and len(wire) > MAX_STOPS:
        raise ApiError("invalid_value", f"'stop' takes up to {MAX_STOPS} strings; it has {len(wire)}.", param="stop")
    given = [wire] if isinstance(wire, str) else wire or []
    return tuple(text for text in given if text)


def refuse_unsupported(body: CompletionBody) -> None:
    """Raise ``<field>_not_supported`` for the first control that asks for something this sampler does not do."""
    for field, neutral in NEUTRAL.items():
        value = getattr(body, field)
        if value is not None and value != neutral:
            text = f"This control is not available: '{field}' must be {neutral}, but is {quoted(value)}."
            raise not_supported(field, text)
    for field in OFF_BELOW:
        value = getattr(body, field)
        if value is not None and value > 0:
            text = f"This control is not available: '{field}' must be 0 or below, but is {quoted(value)}."
            raise not_supported(field, text)
    if body.grammar:
        raise not_supported("grammar", "Output is not constrained; leave 'grammar' out.")
    if body.lora:
        raise not_supported("lora", f"No adapters are loaded; 'lora' names {len(body.lora)}.")
    _refuse_bias(body.logit_bias)
    _refuse_format(body)


def _refuse_bias(wire: list[Any] | dict[str, Any] | None) -> None:
    """llama.cpp takes ``[[token, bias], ...]`` or ``{token: bias}``; a bias of false bans the token."""
    pairs = list(wire.items()) if isinstance(wire, dict) else wire or []
    for at, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise invalid_value(f"logit_bias[{at}]", pair, "a pair of a token and its bias")
        token, bias = pair
        if isinstance(bias, bool) or bias != 0:
            text = f"No 'logit_bias' is applied; token {quoted(token)} has a bias of {quoted(bias)}."
            raise not_supported("logit_bias", text)


def _refuse_format(body: CompletionBody) -> None:
    kind = body.response_format.type if body.response_format is not None else "text"
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid_value("response_format.type", kind, "text, json_object or json_schema")
    param = "json_schema" if body.json_schema is not None else "response_format.type" if kind != "text" else None
    if param is not None:
        raise not_supported("response_format", f"Output is not constrained; leave '{param}' out.", param=param)
