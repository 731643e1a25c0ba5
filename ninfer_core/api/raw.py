"""Raw-prompt completion, which two protocols share: the body's common fields and how they are read."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from ninfer_core.errors import ApiError

from .bodies import invalid_value
from .fields import SHOWN, Ignored, Offence, Only, Used, at_most_zero, empty, equal
from .jobs import SamplingRequest
from .samplers import checked_seed, clamped_top_k

MAX_STOPS = 32
NO_LIMIT = 1 << 30  # whatever the context still holds
ABSENT = "This control is not available"

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


def no_bias(value: Any, place: str) -> Offence | None:
    """llama.cpp takes ``[[token, bias], ...]`` or ``{token: bias}``; a bias of false bans the token."""
    if isinstance(value, dict):
        pairs = [(f"{place}.{token[:SHOWN]}", bias) for token, bias in value.items()]
    else:
        for at, pair in enumerate(value):
            if not isinstance(pair, list) or len(pair) != 2:
                raise invalid_value(f"{place}[{at}]", pair, "a pair of a token and its bias")
        pairs = [(f"{place}[{at}]", bias) for at, (_, bias) in enumerate(value)]
    return next(((where, bias) for where, bias in pairs if isinstance(bias, bool) or bias != 0), None)


class ResponseFormat(Struct):
    type: Annotated[str, Used("text")]


def unconstrained(value: ResponseFormat, place: str) -> Offence | None:
    """A response format without a constraint."""
    if value.type not in ("text", "json_object", "json_schema"):
        raise invalid_value(f"{place}.type", value.type, "text, json_object or json_schema")
    return None if value.type == "text" else (f"{place}.type", value.type)


class RawBody(Struct, kw_only=True):
    """What ``/completion`` and ``/v1/completions`` have in common."""

    ignored: ClassVar[tuple[Ignored, ...]] = (
        Ignored(
            "samplers", "n_keep", "min_keep", "id_slot", why="the order of samplers, slots and kept tokens are fixed"
        ),
        Ignored(
            "typical_p_min_keep",
            "dynatemp_exponent",
            "mirostat_tau",
            "mirostat_eta",
            "xtc_threshold",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "repeat_last_n",
            why="parameters of controls that are off",
        ),
    )

    prompt: Annotated[
        str | list[Any], Used("a text, token ids, or both in one array; an array of one prompt is that prompt")
    ]
    model: Annotated[str | None, Used("the public model id; left out, null or empty: the loaded model")] = None
    stop: Annotated[str | list[str] | None, Used("a text, or up to 32; empty ones stop nothing")] = None
    ignore_eos: Annotated[bool | None, Used("true: run through the model's own stop tokens")] = None
    stream: Annotated[bool | None, Used("true: an event stream")] = None
    timings_per_token: Annotated[bool | None, Used("true: timings on every chunk")] = None
    # nothing of a request is kept after it, so either value is honoured
    cache_prompt: Annotated[bool | None, Used("true or false")] = None

    temperature: Annotated[float | None, Used("a number; below 0 is greedy")] = None
    top_k: Annotated[int | None, Used("a whole number; 0 or below, and above 20, is 20")] = None
    top_p: Annotated[Unit | None, Used("0 to 1")] = None
    min_p: Annotated[Unit | None, Used("0 to 1")] = None
    presence_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    frequency_penalty: Annotated[Penalty | None, Used("-2 to 2")] = None
    seed: Annotated[int | None, Used("a signed number of 64 bits; negative is a random one")] = None

    # controls this sampler does not have
    repeat_penalty: Annotated[float | None, Only(equal(1), "1", ABSENT)] = None
    typical_p: Annotated[float | None, Only(equal(1), "1", ABSENT)] = None
    tfs_z: Annotated[float | None, Only(equal(1), "1", ABSENT)] = None
    dynatemp_range: Annotated[float | None, Only(equal(0), "0", ABSENT)] = None
    mirostat: Annotated[float | None, Only(equal(0), "0", ABSENT)] = None
    xtc_probability: Annotated[float | None, Only(equal(0), "0", ABSENT)] = None
    dry_multiplier: Annotated[float | None, Only(equal(0), "0", ABSENT)] = None
    top_n_sigma: Annotated[float | None, Only(at_most_zero, "0 or below", ABSENT)] = None
    n_probs: Annotated[int | None, Only(equal(0), "0", ABSENT)] = None
    n_indent: Annotated[int | None, Only(equal(0), "0", ABSENT)] = None
    t_max_predict_ms: Annotated[float | None, Only(at_most_zero, "0 or below", ABSENT)] = None
    grammar: Annotated[str | None, Only(empty, "empty", "Output is not constrained")] = None
    lora: Annotated[list[Any] | None, Only(empty, "empty", "No adapters are loaded")] = None
    logit_bias: Annotated[list[Any] | dict[str, Any] | None, Only(no_bias, "zero", "No logit bias is applied")] = None
    response_format: Annotated[ResponseFormat | None, Only(unconstrained, "text", "Output is not constrained")] = None


def raw_prompt(wire: str | list[Any], vocab_tokens: int) -> tuple[str | tuple[int, ...], ...]:
    """Text, token ids, or both in order. An array of one prompt is that prompt; of several, it is refused."""
    place = "prompt"
    if isinstance(wire, list) and len(wire) == 1 and isinstance(wire[0], (str, list)):
        wire, place = wire[0], "prompt[0]"
    if isinstance(wire, str):
        return (wire,)
    if not wire:
        raise invalid_value(place, wire, "a string, or an array of token ids and strings with at least one member")
    if all(isinstance(piece, str) for piece in wire) or any(isinstance(piece, (list, dict)) for piece in wire):
        text = f"One request gives one completion; '{place}' is an array of {len(wire)} prompts."
        raise ApiError("multiple_prompts_not_supported", text, param=place)
    return _pieces(wire, vocab_tokens, place)


def _pieces(wire: list[Any], vocab_tokens: int, place: str) -> tuple[str | tuple[int, ...], ...]:
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
            raise invalid_value(f"{place}[{at}]", piece, f"a string or a token id from 0 to {vocab_tokens - 1}")
    return (*pieces, tuple(run)) if run else tuple(pieces)


def raw_sampling(body: RawBody) -> SamplingRequest:
    """A temperature below zero is greedy, a negative seed random, ``top_k`` at or below zero the widest set."""
    seed = checked_seed(body.seed, "seed")
    if seed is not None and seed < 0:
        # drawn here: no seed at all would be the server's own
        seed = secrets.randbits(63)
    return SamplingRequest(
        temperature=None if body.temperature is None else max(body.temperature, 0.0),
        top_p=body.top_p,
        top_k=None if body.top_k is None else clamped_top_k(max(body.top_k, 0)),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=seed,
    )


def raw_stops(wire: str | list[str] | None) -> tuple[str, ...]:
    """Up to 32 stop strings; an empty one stops nothing and is dropped, as llama.cpp does."""
    if isinstance(wire, list) and len(wire) > MAX_STOPS:
        raise ApiError("invalid_value", f"'stop' takes up to {MAX_STOPS} strings; it has {len(wire)}.", param="stop")
    given = [wire] if isinstance(wire, str) else wire or []
    return tuple(text for text in given if text)
