"""Every field of a Chat Completions body: taken over, neutral, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer_core.api import SamplingRequest
from ninfer_core.api.fields import Checked, Only, table
from ninfer_openai.chat import ChatBody

contract = pytest.mark.contract
CONSTRAINED = (
    "grammar",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
)
NEUTRAL: list[Any] = [
    pytest.param({"n": 1}, marks=pytest.mark.contract("chat.n")),
    pytest.param({"modalities": ["text"]}, marks=pytest.mark.contract("chat.modalities")),
    {"modalities": []},
    {"modalities": ["text"], "audio": {"voice": "alloy", "format": "wav"}},
    {"prediction": {"type": "content", "content": "x"}},
    {"response_format": {"type": "text"}},
    {"logit_bias": {"50": 0, "51": 0.0}},
    {"logit_bias": {}},
    {"logprobs": False, "top_logprobs": 0},
    {"verbosity": "medium"},
    {"tools": [], "tool_choice": "auto"},
    {"functions": [], "function_call": "none"},
    {"function_call": "auto"},
    {"store": False},
    pytest.param({"repetition_penalty": 1.0}, marks=pytest.mark.contract("chat.neutral.repetition-penalty")),
    pytest.param({"mm_processor_kwargs": {"fps": None}}, marks=pytest.mark.contract("chat.neutral.mm-processor")),
    {"mm_processor_kwargs": {}},
    {"grammar": ""},
    {"reasoning_effort": "default"},
    {"reasoning_effort": "auto"},
    {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    pytest.param(
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": 7, "service_tier": "flex", "prompt_cache_key": []},
        marks=pytest.mark.contract("chat.neutral.advisory"),
    ),
    pytest.param({"nobody_knows_this": {"deep": [1]}}, marks=pytest.mark.contract("chat.neutral.unknown")),
    pytest.param(
        dict.fromkeys(("model", "stop", "n", "tools", "response_format", "logit_bias", "graft", "top_logprobs")),
        marks=pytest.mark.contract("chat.model.absent"),
    ),
    {"model": ""},
]


@contract("chat.neutral.values", "chat.effort.field")
@pytest.mark.parametrize("extra", NEUTRAL, ids=lambda extra: ",".join(extra)[:40])
def test_neutral_fields_change_nothing(job, extra):
    assert job(extra) == job({})


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 2}, "n_not_supported", "n"),
    ({"n": 0}, "n_not_supported", "n"),
    ({"modalities": ["text", "audio"]}, "modalities_not_supported", "modalities[1]"),
    ({"response_format": {"type": "json_object"}}, "response_format_not_supported", "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format_not_supported",
        "response_format.type",
    ),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"logit_bias": {"50": 1}}, "logit_bias_not_supported", "logit_bias.50"),
    ({"verbosity": "high"}, "verbosity_not_supported", "verbosity"),
    ({"verbosity": "low"}, "verbosity_not_supported", "verbosity"),
    ({"verbosity": "loud"}, "invalid_value", "verbosity"),
    ({"functions": [{}]}, "functions_not_supported", "functions"),
    ({"function_call": {"name": "f"}}, "function_call_not_supported", "function_call"),
    ({"store": True}, "store_not_supported", "store"),
    ({"web_search_options": {}}, "web_search_options_not_supported", "web_search_options"),
    ({"moderation": {"a": 1}}, "moderation_not_supported", "moderation"),
    ({"repetition_penalty": 1.1}, "repetition_penalty_not_supported", "repetition_penalty"),
    ({"mm_processor_kwargs": {"fps": 2}}, "mm_processor_kwargs_not_supported", "mm_processor_kwargs.fps"),
    ({"mm_processor_kwargs": {"fps": False}}, "mm_processor_kwargs_not_supported", "mm_processor_kwargs.fps"),
    *(({field: {"a": 1}}, f"{field}_not_supported", field) for field in CONSTRAINED),
    ({"guided_json": {}}, "guided_json_not_supported", "guided_json"),
    ({"guided_regex": ""}, "guided_regex_not_supported", "guided_regex"),
]


@contract(
    "chat.refused.effects", "chat.refused.named", "chat.refused.constrained", "chat.format.types", "chat.format.off"
)
@pytest.mark.parametrize(("extra", "code", "param"), REFUSED, ids=lambda value: str(value)[:48])
def test_what_cannot_be_done_is_refused_by_field(refusal, extra, code, param):
    found = refusal(extra)
    assert found[:2] == (code, param)
    assert f"'{param}'" in found[2]


def test_every_restricted_field_of_the_table_is_refused_here():
    restricted = {name for name, field in table(ChatBody).items() if isinstance(field, Only)}
    assert restricted == {name for extra, _, _ in REFUSED for name in extra} | {"graft"}
    assert {name for name, field in table(ChatBody).items() if isinstance(field, Checked)} == {"audio", "prediction"}


@contract("chat.errors.malformed", "chat.ignore-eos.boolean", "chat.budget.field", "logprobs.top", "chat.stop.four")
@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"logprobs": 1}, "invalid_type", "logprobs"),
        ({"logprobs": "true"}, "invalid_type", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "invalid_type", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "invalid_type", "top_logprobs"),
        ({"thinking_budget": 0}, "invalid_value", "thinking_budget"),
        ({"thinking_budget": -1}, "invalid_value", "thinking_budget"),
        ({"thinking_budget": 1.5}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": "5"}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": True}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": {}}, "invalid_type", "thinking_budget"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"top_p": 1.5}, "invalid_value", "top_p"),
        ({"min_p": -1}, "invalid_value", "min_p"),
        ({"min_p": 1.01}, "invalid_value", "min_p"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"top_k": 1.5}, "invalid_type", "top_k"),
        ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
        ({"seed": 1 << 63}, "invalid_value", "seed"),
        ({"seed": "1"}, "invalid_type", "seed"),
        ({"max_tokens": -2}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": -2}, "invalid_value", "max_completion_tokens"),
        ({"max_tokens": 1.5}, "invalid_type", "max_tokens"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"stop": [""]}, "invalid_value", "stop[0]"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": [1]}, "invalid_type", "stop[0]"),
        ({"ignore_eos": None}, "invalid_type", "ignore_eos"),
        ({"ignore_eos": 1}, "invalid_type", "ignore_eos"),
        ({"ignore_eos": "true"}, "invalid_type", "ignore_eos"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream_options": []}, "invalid_type", "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "invalid_type", "stream_options.include_usage"),
        ({"chat_template_kwargs": [1]}, "invalid_type", "chat_template_kwargs"),
        ({"audio": "x"}, "invalid_type", "audio"),
        ({"prediction": 1}, "invalid_type", "prediction"),
        ({"post_thinking": []}, "invalid_type", "post_thinking"),
        ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
        ({"model": 5}, "invalid_type", "model"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": None}, "invalid_type", "messages"),
    ],
    ids=lambda value: str(value)[:48],
)
def test_a_malformed_value_is_refused_by_field(refusal, extra, code, param):
    found = refusal(extra)
    assert found[:2] == (code, param)
    assert f"'{param}'" in found[2]


@contract("chat.post-thinking", "post.fields")
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("temperature", 2.1, "invalid_value"),
        ("temperature", -0.1, "invalid_value"),
        ("temperature", "1", "invalid_type"),
        ("top_p", 1.1, "invalid_value"),
        ("top_p", [], "invalid_type"),
        ("top_k", -1, "invalid_value"),
        ("top_k", 1.5, "invalid_type"),
        ("min_p", 1.1, "invalid_value"),
        ("min_p", False, "invalid_type"),
        ("presence_penalty", 2.1, "invalid_value"),
        ("frequency_penalty", -2.1, "invalid_value"),
        ("frequency_penalty", "0", "invalid_type"),
        ("seed", 1 << 63, "invalid_value"),
        ("seed", -(1 << 63) - 1, "invalid_value"),
        ("seed", 0.5, "invalid_type"),
        ("max_tokens", 5, "unknown_parameter"),
        ("Temperature", 1, "unknown_parameter"),
        ("stop", None, "unknown_parameter"),
    ],
)
def test_the_answers_sampler_refuses_by_member(refusal, field, value, code):
    assert refusal({"post_thinking": {field: value}})[:2] == (code, f"post_thinking.{field}")


def test_no_messages_are_refused(refusal):
    assert refusal(b"{}")[:2] == ("missing_required_parameter", "messages")


@contract("chat.graft")
def test_a_graft_is_known_or_refused(job, refusal):
    assert job({"graft": None}) == job({})
    assert refusal({"graft": "v1"})[:2] == ("unknown_graft", "graft")
    assert refusal({"graft": ""})[:2] == ("unknown_graft", "graft")
    assert refusal({"graft": 7})[:2] == ("invalid_type", "graft")


@contract("chat.sampling.fields", "chat.sampling.top-k", "chat.sampling.min-p")
def test_sampling_is_taken_over_and_top_k_clamped(job):
    asked = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": -(1 << 63),
    }
    assert job(asked).sampling == SamplingRequest(**{**asked, "top_k": 20})
    assert job({}).sampling == SamplingRequest()
    assert job({"top_k": 0}).sampling.top_k == 0


@contract("logprobs.ask", "logprobs.top")
@pytest.mark.parametrize(
    ("asked", "rivals"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": None, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
    ids=str,
)
def test_log_probabilities_are_reported_when_asked_for(job, asked, rivals):
    assert job(asked).logprobs == rivals


@contract("chat.budget.field", "chat.post-thinking", "post.fields")
def test_thinking_budgets_and_the_answers_sampler_are_taken_over(job):
    plain = job({})
    assert (plain.thinking_budget, plain.post_thinking) == (None, None)
    assert job({"thinking_budget": None, "post_thinking": None}) == plain
    assert [job({"thinking_budget": n}).thinking_budget for n in (1, 512, 1 << 70)] == [1, 512, 1 << 70]
    # an empty object is not the same as none: it selects the preset
    assert job({"post_thinking": {}}).post_thinking == SamplingRequest()
    asked = {
        "temperature": 2,
        "top_p": 0,
        "top_k": 40,
        "min_p": 1,
        "presence_penalty": 2,
        "frequency_penalty": -2,
        "seed": -1,
    }
    made = job({"temperature": 1, "top_k": 5, "post_thinking": asked})
    assert made.post_thinking == SamplingRequest(**{**asked, "top_k": 20})
    assert made.sampling == SamplingRequest(temperature=1, top_k=5)
    assert job({"post_thinking": {"top_k": None, "seed": None}}).post_thinking == SamplingRequest()


@contract("chat.limit.names", "chat.limit.zero", "chat.limit.open")
@pytest.mark.parametrize(
    ("limits", "max_tokens", "is_open"),
    [
        ({}, None, False),
        ({"max_tokens": 0}, 0, False),
        ({"max_tokens": 7}, 7, False),
        ({"max_tokens": -1}, None, True),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5, False),
        ({"max_completion_tokens": -1, "max_tokens": 9}, None, True),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 0, False),
        ({"max_tokens": None}, None, False),
    ],
)
def test_output_limits(job, limits, max_tokens, is_open):
    made = job(limits)
    assert (made.max_tokens, made.max_tokens_is_open) == (max_tokens, is_open)


@contract("chat.stop.four", "chat.thinking.places", "chat.kwargs.object", "chat.effort.field")
def test_stops_thinking_and_template_options_are_taken_over(job):
    kwargs = {"preserve_thinking": True, "style": {"b": 1, "a": None}}
    made = job(
        {
            "stop": "END",
            "ignore_eos": True,
            "enable_thinking": False,
            "reasoning_effort": "high",
            "chat_template_kwargs": kwargs,
        }
    )
    assert (made.stops, made.ignore_eos) == (("END",), True)
    assert (made.thinking, made.effort, made.preserve_thinking) == (False, "high", None)
    assert list(made.template_kwargs.items()) == list(kwargs.items())
    assert list(made.template_kwargs["style"]) == ["b", "a"]
    assert job({"preserve_thinking": True}).preserve_thinking is True
    assert job({"stop": ["a", "b", "c", "d"]}).stops == ("a", "b", "c", "d")
    assert job({"reasoning_effort": "none"}).effort == "none"


def test_progress_is_wanted_only_of_a_stream(job):
    assert job({"return_progress": True, "stream": True}).want_progress
    assert not job({"return_progress": True}).want_progress


def test_a_trailing_assistant_turn_is_history_unless_the_server_prefills(job):
    body = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]}
    assert not job(body).prefill
    assert job(body, assistant_prefill=True).prefill
    assert not job({}, assistant_prefill=True).prefill
