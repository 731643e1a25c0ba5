"""Every field of a raw completion: taken over, neutral, or refused by name."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from ninfer_core.api import ApiError, RawJob, SamplingRequest
from ninfer_core.api.fields import Only, table
from ninfer_core.api.http import decode_now
from ninfer_core.api.jobs import FinishReason
from ninfer_core.api.raw import NO_LIMIT
from ninfer_llamacpp.render import STOP_TYPE, only
from ninfer_llamacpp.to_job import to_job
from ninfer_llamacpp.types import CompletionBody

contract = pytest.mark.contract
DECODER = msgspec.json.Decoder(CompletionBody)


def job(**body: Any) -> RawJob:
    encoded = msgspec.json.encode({"prompt": "hi", **body})
    return to_job(decode_now(encoded, DECODER), vocab_tokens=256, request_id="")


def refusal(**body: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        job(**body)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


@contract("completion.prompt", "completion.prompt.several")
@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("hi", ("hi",)),
        ("", ("",)),
        ([1, 2], ((1, 2),)),
        ([5], ((5,),)),
        ([1, 2, "user\nHi", 3], ((1, 2), "user\nHi", (3,))),
        (["a", 1], ("a", (1,))),
        (["only"], ("only",)),
        ([[1, 2]], ((1, 2),)),
        ([[1, "x"]], ((1,), "x")),
    ],
    ids=str,
)
def test_prompts(prompt, pieces):
    assert job(prompt=prompt).prompt == pieces


@contract("completion.prompt.several")
@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (["a", "b"], "multiple_prompts_not_supported", "prompt"),
        ([[1], [2]], "multiple_prompts_not_supported", "prompt"),
        ([[1], "a"], "multiple_prompts_not_supported", "prompt"),
        ([{"prompt_string": "a"}, 1], "multiple_prompts_not_supported", "prompt"),
        ([{"prompt_string": "a"}], "multiple_prompts_not_supported", "prompt"),
        ([], "invalid_value", "prompt"),
        ([[]], "invalid_value", "prompt[0]"),
        ([[1, -1]], "invalid_value", "prompt[0][1]"),
        ([1, -1], "invalid_value", "prompt[1]"),
        ([256], "invalid_value", "prompt[0]"),
        ([1, True], "invalid_value", "prompt[1]"),
        ([1, 2.5], "invalid_value", "prompt[1]"),
        ([None], "invalid_value", "prompt[0]"),
        (7, "invalid_type", "prompt"),
        (None, "invalid_type", "prompt"),
    ],
    ids=str,
)
def test_prompts_that_are_refused(prompt, code, param):
    assert refusal(prompt=prompt) == (code, param)


@contract("completion.limit")
@pytest.mark.parametrize(
    ("limits", "max_tokens"),
    [
        ({}, None),
        ({"n_predict": 0}, 0),
        ({"n_predict": 1}, 1),
        ({"n_predict": -1}, NO_LIMIT),
        ({"n_predict": -2}, NO_LIMIT),
        ({"n_predict": 4, "max_tokens": 9}, 4),
        ({"max_tokens": 9}, 9),
        ({"max_tokens": -7}, NO_LIMIT),
        ({"n_predict": None, "max_tokens": 3}, 3),
    ],
)
def test_output_limits(limits, max_tokens):
    assert job(**limits).max_tokens == max_tokens


@contract("completion.sampling")
def test_sampling_has_llama_cpps_conventions():
    assert job().sampling == SamplingRequest()
    made = job(temperature=-1, top_k=-1, top_p=0.9, min_p=0, seed=-1, presence_penalty=1, frequency_penalty=-1).sampling
    assert made == SamplingRequest(
        temperature=0, top_k=0, top_p=0.9, min_p=0, seed=made.seed, presence_penalty=1, frequency_penalty=-1
    )
    drawn = [job(seed=seed).sampling.seed for seed in (-1, -1, -(1 << 63))]
    assert len(set(drawn)) == 3 and all(0 <= seed < 1 << 63 for seed in drawn)
    assert job(top_k=40, seed=(1 << 63) - 1).sampling == SamplingRequest(top_k=20, seed=(1 << 63) - 1)
    assert refusal(seed=1 << 63) == ("invalid_value", "seed")
    assert refusal(top_p=1.5) == ("invalid_value", "top_p")


@contract("completion.stops")
def test_stop_strings():
    assert job(stop="a").stops == ("a",)
    assert job(stop=["a", "", "b"]).stops == ("a", "b")
    assert len(job(stop=[str(n) for n in range(32)]).stops) == 32
    assert refusal(stop=[str(n) for n in range(33)]) == ("invalid_value", "stop")
    assert refusal(stop=[1]) == ("invalid_type", "stop[0]")


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repeat_penalty": (1, 1.0),
    "typical_p": (1,),
    "tfs_z": (1,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0.0,),
    "top_n_sigma": (0, -1),
    "n_probs": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "grammar": ("",),
    "lora": ([],),
    "logit_bias": ([], {}, [[5, 0]], {"5": 0}),
    "response_format": ({"type": "text"},),
    "image_data": ([],),
    "json_schema": (),
}
ASKING: dict[str, tuple[Any, ...]] = {
    "repeat_penalty": (1.1, 0),
    "typical_p": (0.9,),
    "tfs_z": (0.5,),
    "dynatemp_range": (0.1,),
    "mirostat": (1, 2),
    "xtc_probability": (0.5,),
    "dry_multiplier": (0.8,),
    "top_n_sigma": (1,),
    "n_probs": (5,),
    "n_indent": (2,),
    "t_max_predict_ms": (100,),
    "grammar": ("root ::= x",),
    "lora": ([{"id": 0, "scale": 1}],),
    "logit_bias": ([[5, 1]], [[5, False]], {"5": -1}),
    "image_data": ([{"data": "aGk=", "id": 1}],),
}


@contract("completion.controls", "completion.controls.lists")
@pytest.mark.parametrize("field", NEUTRAL)
def test_neutral_values_change_nothing(field):
    for value in (None, *NEUTRAL[field]):
        assert job(**{field: value}) == job()


@contract("completion.controls", "completion.controls.lists")
@pytest.mark.parametrize("field", ASKING)
def test_a_control_that_asks_for_something_is_refused_by_name(field):
    for value in ASKING[field]:
        code, param = refusal(**{field: value})
        assert code == f"{field}_not_supported"
        assert param is not None and param.startswith(field)


def test_every_restricted_field_of_the_table_is_tried_here():
    restricted = {name for name, field in table(CompletionBody).items() if isinstance(field, Only)}
    assert restricted == set(NEUTRAL)


@contract("completion.json-schema")
def test_constrained_output_is_refused_under_one_code():
    assert refusal(json_schema={}) == ("response_format_not_supported", "json_schema")
    for kind in ("json_object", "json_schema"):
        assert refusal(response_format={"type": kind}) == ("response_format_not_supported", "response_format.type")
    assert refusal(response_format={"type": "xml"}) == ("invalid_value", "response_format.type")
    assert refusal(logit_bias=[5]) == ("invalid_value", "logit_bias[0]")


@contract("completion.controls.ignored", "completion.flags")
def test_fields_without_effect_are_accepted():
    extra = {"samplers": ["top_k"], "n_keep": 4, "min_keep": 1, "id_slot": 0, "mirostat_tau": 5, "cache_prompt": False}
    assert job(**extra) == job()


@contract("completion.stop-type")
def test_every_finish_of_the_engine_has_a_stop_type():
    assert set(STOP_TYPE) == set(get_args(FinishReason))


@contract("completion.fields")
def test_response_fields_keep_what_exists_under_the_path_it_was_asked_by():
    whole = {"a": 1, "b": {"c": {"d": 2}}, "e/f": 3}
    assert only(whole, ["b/c/d", "a", "b/x", "z", "a/b"]) == {"b/c/d": 2, "a": 1}
