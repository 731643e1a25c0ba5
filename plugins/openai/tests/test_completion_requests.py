"""Every field of a raw completion, and the answer in OpenAI's legacy shape."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from ninfer_core.api import ApiError, HttpResponse, RawJob, SamplingRequest, Unavailable
from ninfer_core.api.fields import Only, table
from ninfer_core.api.http import decode_now
from ninfer_core.api.raw import NO_LIMIT
from ninfer_core.testing import FakeEngine
from ninfer_openai.completions import CompletionBody, to_job

contract = pytest.mark.contract
DECODER = msgspec.json.Decoder(CompletionBody)
PATH = "/v1/completions"


def job(**body: Any) -> RawJob:
    encoded = msgspec.json.encode({"prompt": "hi", **body})
    return to_job(decode_now(encoded, DECODER), vocab_tokens=256, request_id="")


def refusal(**body: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        job(**body)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


@contract("raw.prompt", "raw.prompt.several")
@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("hi", ("hi",)),
        ("", ("",)),
        ([1, 2], ((1, 2),)),
        ([1, 2, "user\nHi", 3], ((1, 2), "user\nHi", (3,))),
        (["only"], ("only",)),
        ([[1, "x"]], ((1,), "x")),
    ],
    ids=str,
)
def test_prompts(prompt, pieces):
    assert job(prompt=prompt).prompt == pieces


@contract("raw.prompt.several")
@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (["a", "b"], "multiple_prompts_not_supported", "prompt"),
        ([[1], [2]], "multiple_prompts_not_supported", "prompt"),
        ([[["a"]]], "multiple_prompts_not_supported", "prompt[0]"),
        ([], "invalid_value", "prompt"),
        ([[]], "invalid_value", "prompt[0]"),
        ([1, 256], "invalid_value", "prompt[1]"),
        ([1, True], "invalid_value", "prompt[1]"),
        (None, "invalid_type", "prompt"),
        ({}, "invalid_type", "prompt"),
    ],
    ids=str,
)
def test_prompts_that_are_refused(prompt, code, param):
    assert refusal(prompt=prompt) == (code, param)


@contract("raw.limit")
def test_output_limits():
    limits = [job(max_tokens=limit).max_tokens for limit in (None, 0, 16, -1)]
    assert limits == [None, 0, 16, NO_LIMIT]
    assert refusal(max_tokens=-2) == ("invalid_value", "max_tokens")


@contract("raw.sampling", "raw.stops")
def test_sampling_has_llama_cpps_conventions():
    assert job().sampling == SamplingRequest()
    asked = {"top_p": 0.9, "min_p": 0, "presence_penalty": 1, "frequency_penalty": -1}
    made = job(temperature=-1, top_k=-1, seed=-1, **asked).sampling
    assert made == SamplingRequest(temperature=0, top_k=0, seed=made.seed, **asked)
    drawn = [job(seed=seed).sampling.seed for seed in (-1, -1, -(1 << 63))]
    assert len(set(drawn)) == 3 and all(0 <= seed < 1 << 63 for seed in drawn)
    assert job(top_k=40, seed=5).sampling == SamplingRequest(top_k=20, seed=5)
    assert refusal(seed=1 << 63) == ("invalid_value", "seed")
    assert job(stop="a").stops == ("a",)
    assert job(stop=["a", "", "b"]).stops == ("a", "b")
    assert len(job(stop=[str(n) for n in range(32)]).stops) == 32
    assert refusal(stop=[str(n) for n in range(33)]) == ("invalid_value", "stop")


@contract("raw.flags")
def test_flags():
    assert job(ignore_eos=True).ignore_eos
    assert job(cache_prompt=False, response_format={"type": "text"}, stream=True, timings_per_token=True) == job()
    assert refusal(response_format={"type": "json_object"}) == ("response_format_not_supported", "response_format.type")
    assert refusal(response_format={"type": "xml"}) == ("invalid_value", "response_format.type")
    for field in ("ignore_eos", "stream", "timings_per_token", "cache_prompt", "echo"):
        assert refusal(**{field: "x"}) == ("invalid_type", field)


NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repeat_penalty", "typical_p", "tfs_z", "repetition_penalty"), (1, 1.0)),
    **dict.fromkeys(("dynatemp_range", "mirostat", "xtc_probability", "dry_multiplier", "n_probs", "n_indent"), (0,)),
    **dict.fromkeys(("top_n_sigma", "t_max_predict_ms"), (0, -1)),
    "grammar": ("",),
    "suffix": ("",),
    "lora": ([],),
    "logit_bias": ([], {}, [[5, 0]], {"5": 0}),
    "response_format": ({"type": "text"},),
    "n": (1,),
    "best_of": (1,),
    "logprobs": (0,),
    **dict.fromkeys(
        ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema"), ()
    ),
}
ASKING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repeat_penalty", "typical_p", "tfs_z", "repetition_penalty"), (1.1, 0)),
    **dict.fromkeys(("dynatemp_range", "xtc_probability", "dry_multiplier", "top_n_sigma"), (0.5,)),
    **dict.fromkeys(("mirostat", "n_probs", "n_indent", "t_max_predict_ms"), (2,)),
    "grammar": ("root ::= x",),
    "suffix": ("}",),
    "lora": ([{"id": 0, "scale": 1}],),
    "logit_bias": ([[5, 1]], [[5, False]], {"5": -1}),
    "response_format": ({"type": "json_schema"},),
    "n": (2, 0),
    "best_of": (2,),
    "logprobs": (1, 5),
    **dict.fromkeys(
        ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema"), ({},)
    ),
}


def test_every_restricted_field_of_the_table_is_tried_here():
    restricted = {name for name, field in table(CompletionBody).items() if isinstance(field, Only)}
    assert set(NEUTRAL) == set(ASKING) == restricted


@contract("raw.controls", "raw.single", "raw.suffix", "raw.controls.lists")
@pytest.mark.parametrize("field", NEUTRAL)
def test_neutral_values_change_nothing_and_others_are_refused_by_name(field):
    for value in (None, *NEUTRAL[field]):
        assert job(**{field: value}) == job()
    for value in ASKING[field]:
        code, param = refusal(**{field: value})
        assert code == f"{field}_not_supported"
        assert param is not None and param.startswith(field)


@contract("raw.controls.ignored")
def test_fields_without_effect_are_accepted():
    extra = {"samplers": ["top_k"], "n_keep": 4, "min_keep": 1, "id_slot": 0, "mirostat_tau": 5, "nobody_knows": {}}
    assert job(**extra) == job()


def events(response: HttpResponse) -> list[dict[str, Any]]:
    *made, end = response.body.decode().removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in made]


@contract("raw.answer")
@pytest.mark.parametrize(
    ("finish", "named"), [("stop_token", "stop"), ("stop_string", "stop"), ("output_limit", "length")]
)
def test_the_aggregate_answer(post, finish, named):
    answer = msgspec.json.decode(post(PATH, {"prompt": "hi", "stop": "x"}, FakeEngine(finish=finish)).body)
    assert answer["choices"] == [{"text": "OK.", "index": 0, "logprobs": None, "finish_reason": named}]
    assert (answer["id"], answer["object"], answer["created"], answer["model"]) == (
        "cmpl-1",
        "text_completion",
        1,
        "fake",
    )
    assert answer["usage"]["prompt_tokens"] == answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == 5


@contract("raw.stream", "raw.usage", "chat.usage.choice")
@pytest.mark.parametrize("choice", [False, True], ids=["empty", "with a choice"])
def test_a_stream_with_usage(post, choice):
    body = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    *texts, finish, last = events(post(PATH, body, FakeEngine(), usage_chunk_choice=choice))
    assert [chunk["choices"][0]["text"] for chunk in texts] == ["OK", "."]
    assert [chunk["choices"][0]["finish_reason"] for chunk in texts] == [None, None]
    assert finish["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert all(chunk["usage"] is None and "timings" not in chunk for chunk in (*texts, finish))
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": None}] * choice
    assert last["usage"]["total_tokens"] == 9
    assert last["timings"]["predicted_n"] == 2


@contract("raw.stream", "raw.flags")
def test_a_stream_without_usage_has_timings_on_its_finish_chunk(post):
    *texts, finish = events(post(PATH, {"prompt": "hi", "stream": True, "timings_per_token": True}))
    assert all("usage" not in chunk and "timings" in chunk for chunk in texts)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in finish and "timings" in finish


@contract("raw.echo")
@pytest.mark.parametrize(
    ("prompt", "echoed"), [("hé", "hé"), ([104, 105], "hi"), ([104, "é<|im_end|>", 33], "hé<|im_end|>!"), ("", "")]
)
@pytest.mark.parametrize("pieces", [["O", "K"], []], ids=["text", "nothing"])
def test_echo_puts_the_prompts_text_first(post, prompt, echoed, pieces):
    body = {"prompt": prompt, "echo": True}
    said = "".join(pieces)
    whole = msgspec.json.decode(post(PATH, body, FakeEngine(pieces=pieces)).body)
    assert whole["choices"][0]["text"] == echoed + said
    texts = [e["choices"][0]["text"] for e in events(post(PATH, {**body, "stream": True}, FakeEngine(pieces=pieces)))]
    assert "".join(texts) == echoed + said
    assert texts[0] == (echoed or (pieces or [""])[0])


@contract("raw.stream")
def test_texts_add_up_to_the_aggregate_however_they_are_cut(post):
    text = 'a"🌍\nb'
    whole = msgspec.json.decode(post(PATH, {"prompt": "p", "echo": True}, FakeEngine(pieces=[text])).body)
    for marks in itertools.product((False, True), repeat=len(text) - 1):
        edges = [0, *(at + 1 for at, cut in enumerate(marks) if cut), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        made = events(post(PATH, {"prompt": "p", "echo": True, "stream": True}, FakeEngine(pieces=pieces)))
        assert "".join(event["choices"][0]["text"] for event in made) == whole["choices"][0]["text"]
        assert len(made) == len(pieces) + 2


@contract("raw.plain")
def test_reasoning_tags_are_text(post):
    engine = FakeEngine(pieces=["<think>", "x</think>"])
    assert msgspec.json.decode(post(PATH, {"prompt": "p"}, engine).body)["choices"][0]["text"] == "<think>x</think>"
    assert isinstance(engine.jobs[0], RawJob)


def test_a_failure_inside_a_stream_ends_it(post):
    with pytest.raises(ApiError):
        post(PATH, {"prompt": "p"}, FakeEngine(failure=Unavailable()))
    assert b"service_unavailable" in post(PATH, {"prompt": "p", "stream": True}, FakeEngine(failure=Unavailable())).body
