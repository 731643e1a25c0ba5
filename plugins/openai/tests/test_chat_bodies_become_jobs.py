"""Every field of a Chat Completions body: taken over, neutral, or refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ninfer_core.api import ApiError, ChatJob, OptionValues, Part, SamplingRequest, ToolCall
from ninfer_core.testing import FakeContext, FakeEngine
from ninfer_openai.frontend import OpenAI
from ninfer_openai.render import FINISH

TURN = {"messages": [{"role": "user", "content": "hi"}]}


def job(body: dict[str, Any], **options: Any) -> ChatJob:
    frontend = OpenAI(FakeContext(FakeEngine(), OptionValues(options, frozenset())))
    return asyncio.run(frontend.read_chat(msgspec.json.encode(body)))[1]


def refusal(body: dict[str, Any], **options: Any) -> tuple[str | None, str | None, str]:
    with pytest.raises(ApiError) as caught:
        job(body, **options)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param, caught.value.message


def message(**fields: Any) -> Any:
    return job({"messages": [fields]}).messages[0]


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1},
        {"modalities": ["text"]},
        {"modalities": ["text"], "audio": {"voice": "alloy", "format": "wav"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"response_format": {"type": "text"}},
        {"logit_bias": {"50": 0, "51": 0.0}},
        {"logit_bias": {}},
        {"logprobs": False, "top_logprobs": 0},
        {"verbosity": "medium"},
        {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none", "parallel_tool_calls": False},
        {"store": False},
        {"repetition_penalty": 1.0},
        {"mm_processor_kwargs": {"fps": None}},
        {"graft": ""},
        {"reasoning_effort": "default"},
        {"reasoning_effort": "auto"},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"chat_template_kwargs": {"enable_thinking": None}},
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": 7, "service_tier": "flex", "prompt_cache_key": []},
        {"nobody_knows_this": {"deep": [1]}},
        dict.fromkeys(("model", "stop", "n", "tools", "response_format", "logit_bias", "graft", "top_logprobs")),
    ],
    ids=lambda extra: ",".join(extra)[:40],
)
def test_neutral_fields_change_nothing(extra):
    assert job({**TURN, **extra}) == job(TURN)


@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"n": 2}, "n_not_supported", "n"),
        ({"modalities": ["text", "audio"]}, "modalities_not_supported", "modalities[1]"),
        ({"response_format": {"type": "json_object"}}, "response_format_not_supported", "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format_not_supported",
            "response_format.type",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"logit_bias": {"50": 1}}, "logit_bias_not_supported", "logit_bias"),
        ({"logprobs": 1}, "invalid_type", "logprobs"),
        ({"logprobs": "true"}, "invalid_type", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "invalid_type", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "invalid_type", "top_logprobs"),
        ({"verbosity": "high"}, "verbosity_not_supported", "verbosity"),
        ({"verbosity": "loud"}, "invalid_value", "verbosity"),
        ({"tools": [{"type": "function"}]}, "tools_not_supported", "tools"),
        ({"functions": [{}]}, "functions_not_supported", "functions"),
        ({"tool_choice": "required"}, "tool_choice_not_supported", "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice_not_supported", "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call_not_supported", "function_call"),
        ({"store": True}, "store_not_supported", "store"),
        ({"web_search_options": {}}, "web_search_options_not_supported", "web_search_options"),
        ({"moderation": {"a": 1}}, "moderation_not_supported", "moderation"),
        ({"repetition_penalty": 1.1}, "repetition_penalty_not_supported", "repetition_penalty"),
        ({"mm_processor_kwargs": {"fps": 2}}, "mm_processor_kwargs_not_supported", "mm_processor_kwargs.fps"),
        ({"thinking_budget": 0}, "invalid_value", "thinking_budget"),
        ({"thinking_budget": -1}, "invalid_value", "thinking_budget"),
        ({"thinking_budget": 1.5}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": "5"}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": True}, "invalid_type", "thinking_budget"),
        ({"thinking_budget": {}}, "invalid_type", "thinking_budget"),
        ({"post_thinking": []}, "invalid_type", "post_thinking"),
        ({"post_thinking": True}, "invalid_type", "post_thinking"),
        *(
            ({"post_thinking": {field: value}}, code, f"post_thinking.{field}")
            for field, value, code in (
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
            )
        ),
        ({"graft": "v1"}, "unknown_graft", "graft"),
        ({"graft": 7}, "invalid_type", "graft"),
        *(
            ({field: {"a": 1}}, f"{field}_not_supported", field)
            for field in (
                "grammar",
                "structured_outputs",
                "guided_json",
                "guided_regex",
                "guided_choice",
                "guided_grammar",
            )
        ),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"top_p": 1.5}, "invalid_value", "top_p"),
        ({"min_p": -1}, "invalid_value", "min_p"),
        ({"top_k": -1}, "invalid_value", "top_k"),
        ({"top_k": 1.5}, "invalid_type", "top_k"),
        ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
        ({"seed": 1 << 63}, "invalid_value", "seed"),
        ({"seed": "1"}, "invalid_type", "seed"),
        ({"max_tokens": -2}, "invalid_value", "max_tokens"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        ({"stop": [""]}, "invalid_value", "stop[0]"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"ignore_eos": None}, "invalid_type", "ignore_eos"),
        ({"ignore_eos": 1}, "invalid_type", "ignore_eos"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"reasoning_effort": "hard"}, "invalid_value", "reasoning_effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "invalid_value", "reasoning_effort"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "invalid_value",
            "chat_template_kwargs.enable_thinking",
        ),
        (
            {"chat_template_kwargs": {"preserve_thinking": "yes"}},
            "invalid_type",
            "chat_template_kwargs.preserve_thinking",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "invalid_value", "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": [1]}, "invalid_type", "chat_template_kwargs"),
    ],
    ids=lambda value: str(value)[:48],
)
def test_what_cannot_be_done_is_refused_by_field(extra, code, param):
    found = refusal({**TURN, **extra})
    assert found[:2] == (code, param)
    assert param.partition(".")[0].partition("[")[0] in found[2]


def test_sampling_is_taken_over_and_top_k_clamped():
    asked = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": -(1 << 63),
    }
    assert job({**TURN, **asked}).sampling == SamplingRequest(**{**asked, "top_k": 20})
    assert job(TURN).sampling == SamplingRequest()
    assert job({**TURN, "top_k": 0}).sampling.top_k == 0


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
def test_log_probabilities_are_reported_when_asked_for(asked, rivals):
    assert job({**TURN, **asked}).logprobs == rivals


def test_thinking_budgets_and_the_answers_sampler_are_taken_over():
    plain = job(TURN)
    assert (plain.thinking_budget, plain.post_thinking) == (None, None)
    assert job({**TURN, "thinking_budget": None, "post_thinking": None}) == plain
    assert [job({**TURN, "thinking_budget": n}).thinking_budget for n in (1, 512, 1 << 70)] == [1, 512, 1 << 70]
    # an empty object is not the same as none: it selects the preset
    assert job({**TURN, "post_thinking": {}}).post_thinking == SamplingRequest()
    asked = {
        "temperature": 2,
        "top_p": 0,
        "top_k": 40,
        "min_p": 1,
        "presence_penalty": 2,
        "frequency_penalty": -2,
        "seed": -1,
    }
    made = job({**TURN, "temperature": 1, "top_k": 5, "post_thinking": asked})
    assert made.post_thinking == SamplingRequest(**{**asked, "top_k": 20})
    assert made.sampling == SamplingRequest(temperature=1, top_k=5)
    assert job({**TURN, "post_thinking": {"top_k": None, "seed": None}}).post_thinking == SamplingRequest()


@pytest.mark.parametrize(
    ("limits", "max_tokens", "is_open"),
    [
        ({}, None, False),
        ({"max_tokens": 0}, 0, False),
        ({"max_tokens": 7}, 7, False),
        ({"max_tokens": -1}, None, True),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5, False),
        ({"max_completion_tokens": -1, "max_tokens": 9}, None, True),
        ({"max_tokens": None}, None, False),
    ],
)
def test_output_limits(limits, max_tokens, is_open):
    made = job({**TURN, **limits})
    assert (made.max_tokens, made.max_tokens_is_open) == (max_tokens, is_open)


def test_stops_thinking_and_template_options_are_taken_over():
    made = job(
        {
            **TURN,
            "stop": "END",
            "ignore_eos": True,
            "enable_thinking": False,
            "reasoning_effort": "high",
            "chat_template_kwargs": {"preserve_thinking": True, "enable_thinking": False, "style": {"b": 1, "a": None}},
        }
    )
    assert (made.stops, made.ignore_eos) == (("END",), True)
    assert (made.thinking, made.effort, made.preserve_thinking) == (False, "high", True)
    assert list(made.template_kwargs.items()) == [("style", {"b": 1, "a": None})]
    assert list(made.template_kwargs["style"]) == ["b", "a"]
    assert job({**TURN, "reasoning_effort": "none"}).thinking is False
    assert job({**TURN, "chat_template_kwargs": {"reasoning_effort": "low"}}).effort == "low"
    assert job({**TURN, "stop": ["a", "b", "c", "d"]}).stops == ("a", "b", "c", "d")


def test_progress_is_wanted_only_of_a_stream():
    assert job({**TURN, "return_progress": True, "stream": True}).want_progress
    assert not job({**TURN, "return_progress": True}).want_progress


def test_messages_keep_their_order_parts_and_places():
    made = job(
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": ""},
                {"role": "user", "content": []},
                {"role": "assistant", "content": None, "reasoning": "r", "refusal": "no"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]},
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
                {"role": "function", "name": "g", "content": "43"},
            ]
        }
    ).messages
    assert [m.role for m in made] == ["system", "developer", "user", "user", "assistant", "assistant", "tool", "tool"]
    assert made[1].content == (Part(text="a"), Part(text="b"))
    assert made[2].content == (Part(text=""),)
    assert made[3].content == ()
    assert (made[4].text, made[4].reasoning, made[5].text) == ("no", "r", "never")
    assert (made[6].tool_call_id, made[7].tool_call_id) == ("c1", None)
    assert [m.place for m in made] == [f"messages[{at}]" for at in range(8)]


def test_history_of_tool_calls_keeps_the_order_of_members():
    made = message(
        role="assistant",
        tool_calls=[
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"z":1,"a":[true,null,"é"]}'}},
            {"id": "2", "type": "custom", "custom": {"name": "g", "input": "free"}},
            {"id": "3", "function": {"name": "h", "arguments": ""}},
        ],
        function_call={"name": "old", "arguments": "{}"},
    )
    assert made.tool_calls == (
        ToolCall(id="1", name="f", arguments={"z": 1, "a": [True, None, "é"]}),
        ToolCall(id="2", name="g", arguments={"input": "free"}),
        ToolCall(id="3", name="h", arguments={}),
        ToolCall(id="", name="old", arguments={}),
    )
    assert list(made.tool_calls[0].arguments) == ["z", "a"]


@pytest.mark.parametrize(
    ("fields", "code", "place"),
    [
        ({"role": "robot", "content": "x"}, "invalid_value", "role"),
        ({"content": "x"}, "missing_required_parameter", "role"),
        ({"role": "user"}, "invalid_value", "content"),
        ({"role": "user", "content": 5}, "invalid_type", "content"),
        ({"role": "user", "content": "x", "name": "ann"}, "name_not_supported", "name"),
        ({"role": "tool", "tool_call_id": "1", "content": "x", "name": 5}, "invalid_type", "name"),
        ({"role": "tool", "content": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"role": "function", "content": "x"}, "missing_required_parameter", "name"),
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}, "invalid_value", "tool_calls"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio_not_supported", "audio"),
        ({"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, "invalid_value", "reasoning"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "vision_disabled", "content[0]"),
        ({"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url"}]}, "vision_disabled", "content[0]"),
        ({"role": "user", "content": [{"type": "video_url"}]}, "vision_disabled", "content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio_not_supported", "content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "file_not_supported", "content[0]"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "invalid_value", "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "missing_required_parameter", "content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "missing_required_parameter", "content[0].type"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": NaN}'}}]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "function"}]},
            "missing_required_parameter",
            "tool_calls[0].function",
        ),
        ({"role": "assistant", "tool_calls": [{"type": "code"}]}, "invalid_value", "tool_calls[0].type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_message_that_cannot_be_represented_is_refused_by_place(fields, code, place):
    body = {"messages": [{"role": "user", "content": "before"}, fields]}
    assert refusal(body)[:2] == (code, f"messages[1].{place}")


def test_no_messages_are_refused():
    assert refusal({"messages": []})[:2] == ("invalid_value", "messages")
    assert refusal({})[:2] == ("missing_required_parameter", "messages")


def test_a_trailing_assistant_turn_is_history_unless_the_server_prefills():
    body = {"messages": [*TURN["messages"], {"role": "assistant", "content": "The"}]}
    assert not job(body).prefill
    silent = {**body, "enable_thinking": False}
    assert job(silent, assistant_prefill=True).prefill
    assert job({**body, "reasoning_effort": "none"}, assistant_prefill=True).prefill
    assert not job(TURN, assistant_prefill=True).prefill
    for wrong in (body, {**body, "enable_thinking": True}):
        assert refusal(wrong, assistant_prefill=True)[:2] == ("assistant_prefill_not_supported", "messages[1]")
    thought = {"messages": [*TURN["messages"], {"role": "assistant", "content": "T", "reasoning": "r"}]}
    assert (
        refusal({**thought, "enable_thinking": False}, assistant_prefill=True)[0] == "assistant_prefill_not_supported"
    )


def test_every_finish_of_the_engine_has_a_name():
    from typing import get_args

    from ninfer_core.api.jobs import FinishReason

    assert set(FINISH) == set(get_args(FinishReason))
    assert set(FINISH.values()) == {"stop", "length"}


def test_the_usage_chunk_can_carry_a_choice():
    options = OptionValues({"usage_chunk_choice": True}, frozenset())
    frontend = OpenAI(FakeContext(FakeEngine(pieces=["x"]), options), clock=lambda: 1.0).frontend()

    async def last_chunk():
        from ninfer_core.api import HttpRequest

        body = msgspec.json.encode({**TURN, "stream": True, "stream_options": {"include_usage": True}})
        request = HttpRequest(
            method="POST", path="/v1/chat/completions", params={}, query={}, headers={}, body=body, request_id="req_1"
        )
        response = await frontend.routes[0].handler(request)
        return [chunk async for chunk in response.stream][-2]

    chunk = msgspec.json.decode(asyncio.run(last_chunk()).removeprefix(b"data: "))
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert chunk["usage"]["total_tokens"] == 7
