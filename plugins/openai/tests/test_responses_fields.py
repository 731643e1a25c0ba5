"""Every field of a Responses body: taken over, neutral, or refused by name."""

from __future__ import annotations

import pytest

from ninfer_core.api import Part, SamplingRequest
from ninfer_core.testing import FakeEngine
from ninfer_openai.responses.plan import ENCRYPTED, LOGPROBS

contract = pytest.mark.contract


@contract("responses.hints", "responses.client-metadata", "responses.max-tool-calls", "responses.obfuscation")
@pytest.mark.parametrize(
    "extra",
    [
        {"client_metadata": {"session": {"deep": [1]}}},
        {"max_tool_calls": 0},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "user": "u"},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"stream_options": {"include_obfuscation": True}},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"background": False},
        {"truncation": "disabled"},
        {"include": []},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"text": {}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
        {"parallel_tool_calls": True},
        {"graft": ""},
        {"reasoning": {}},
        {"reasoning": {"effort": "default"}},
        {"reasoning": {"effort": "auto", "summary": "auto", "generate_summary": "auto"}},
        {"metadata": {"k" * 64: "v" * 512}},
        {"top_logprobs": 0},
        {"instructions": ""},
        dict.fromkeys(("stream", "store", "conversation", "prompt", "context_management", "moderation", "metadata")),
        dict.fromkeys(("instructions", "previous_response_id", "reasoning", "tools", "tool_choice", "text", "graft")),
        dict.fromkeys(("max_output_tokens", "temperature", "top_p", "include", "service_tier", "background", "user")),
    ],
    ids=lambda extra: ",".join(extra)[:40],
)
def test_neutral_fields_change_nothing(responses, extra):
    server = responses()
    first = server.job(store=False)
    second = server.job(**{"store": False, **extra} if "store" not in extra else extra)
    changed = {"request_id", "session_key", "session_read_only", "single_call"}
    assert {k: getattr(first, k) for k in first.__slots__ if k not in changed} == {
        k: getattr(second, k) for k in second.__slots__ if k not in changed
    }


@contract(
    "responses.unknown",
    "responses.refused.named",
    "responses.refused.features",
    "responses.summary.values",
    "responses.reasoning.options",
    "responses.graft",
    "responses.format",
    "responses.truncation",
    "responses.service-tier",
    "responses.background",
    "responses.modes",
)
@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"top_k": 5}, "unknown_parameter", "top_k"),
        ({"ignore_eos": True}, "unknown_parameter", "ignore_eos"),
        ({"enable_thinking": True}, "unknown_parameter", "enable_thinking"),
        ({"nobody": {"deep": 1}}, "unknown_parameter", "nobody"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"model": ""}, "invalid_value", "model"),
        ({"model": None}, "invalid_type", "model"),
        ({"model": 3}, "invalid_type", "model"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": {"role": "user"}}, "invalid_type", "input"),
        ({"input": ["hi"]}, "invalid_type", "input[0]"),
        ({"instructions": ["x"]}, "invalid_type", "instructions"),
        ({"previous_response_id": 5}, "invalid_type", "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation_not_supported", "conversation"),
        ({"prompt": {"id": "p"}}, "prompt_not_supported", "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management_not_supported", "context_management"),
        ({"moderation": {"model": "m"}}, "moderation_not_supported", "moderation"),
        ({"access_programs": {}}, "access_programs_not_supported", "access_programs"),
        ({"background_options": {}}, "background_options_not_supported", "background_options"),
        ({"image": {}}, "image_not_supported", "image"),
        ({"background": True}, "background_not_supported", "background"),
        ({"truncation": "auto"}, "truncation_not_supported", "truncation"),
        ({"service_tier": "flex"}, "service_tier_not_supported", "service_tier"),
        ({"include": ["file_search_call.results"]}, "include_not_supported", "include[0]"),
        ({"include": [ENCRYPTED, 5]}, "invalid_type", "include[1]"),
        ({"graft": "v1"}, "unknown_graft", "graft"),
        ({"graft": 7}, "invalid_type", "graft"),
        ({"max_output_tokens": -1}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 1.5}, "invalid_type", "max_output_tokens"),
        ({"max_tool_calls": -1}, "invalid_value", "max_tool_calls"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": "1"}, "invalid_type", "temperature"),
        ({"top_p": 1.1}, "invalid_value", "top_p"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": -1}, "invalid_value", "top_logprobs"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream_options": {"include_usage": True}}, "unknown_parameter", "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": 1}}, "invalid_type", "stream_options.include_obfuscation"),
        ({"store": "no"}, "invalid_type", "store"),
        ({"metadata": {"k": 1}}, "invalid_type", "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        ({"metadata": {str(at): "v" for at in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": []}, "invalid_type", "metadata"),
        ({"client_metadata": "x"}, "invalid_type", "client_metadata"),
        ({"prompt_cache_key": 5}, "invalid_type", "prompt_cache_key"),
        ({"prompt_cache_options": []}, "invalid_type", "prompt_cache_options"),
        ({"safety_identifier": {}}, "invalid_type", "safety_identifier"),
        ({"user": 5}, "invalid_type", "user"),
        ({"reasoning": {"effort": "hard"}}, "invalid_value", "reasoning.effort"),
        ({"reasoning": {"effort": 5}}, "invalid_type", "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "invalid_value", "reasoning.summary"),
        ({"reasoning": {"generate_summary": "long"}}, "invalid_value", "reasoning.generate_summary"),
        (
            {"reasoning": {"summary": "auto", "generate_summary": "concise"}},
            "invalid_value",
            "reasoning.generate_summary",
        ),
        ({"reasoning": {"context": "all"}}, "reasoning_option_not_supported", "reasoning.context"),
        ({"reasoning": {"mode": "pro"}}, "reasoning_option_not_supported", "reasoning.mode"),
        ({"reasoning": {"efort": "low"}}, "unknown_parameter", "reasoning.efort"),
        (
            {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}},
            "invalid_value",
            "reasoning.effort",
        ),
        (
            {"preserve_thinking": True, "chat_template_kwargs": {"preserve_thinking": False}},
            "invalid_value",
            "chat_template_kwargs.preserve_thinking",
        ),
        ({"chat_template_kwargs": {"preserve_thinking": 1}}, "invalid_value", "chat_template_kwargs.preserve_thinking"),
        ({"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
        ({"thinking_budget": 0}, "invalid_value", "thinking_budget"),
        ({"post_thinking": {"stop": "x"}}, "unknown_parameter", "post_thinking.stop"),
        ({"post_thinking": {"temperature": 3}}, "invalid_value", "post_thinking.temperature"),
        ({"text": {"verbosity": "low"}}, "verbosity_not_supported", "text.verbosity"),
        ({"text": {"verbosity": "loud"}}, "invalid_value", "text.verbosity"),
        ({"text": {"format": {"type": "json_object"}}}, "response_format_not_supported", "text.format.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            "response_format_not_supported",
            "text.format.type",
        ),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        ({"text": {"format": {}}}, "missing_required_parameter", "text.format.type"),
        ({"text": {"form": {}}}, "unknown_parameter", "text.form"),
    ],
    ids=lambda value: str(value)[:48],
)
def test_what_cannot_be_done_is_refused_by_field(responses, extra, code, param):
    status, *found, message = responses().refusal(**{"input": "hi", **extra})
    assert (status, *found) == (400, code, param)
    assert param.rpartition(".")[2].partition("[")[0] in message


@contract("responses.refused.value")
def test_a_refusal_quotes_the_value_in_ascii_and_says_how_long_it_is(responses):
    short = responses().refusal(input="hi", truncation="aut\u00f6")[3]
    assert '"aut\\u00f6"' in short
    long = responses().refusal(input="hi", tools=[{"type": "function", "name": "\U0001f30d" * 300}])
    assert long[2] == "tools[0].name" and "'tools[0].name'" in long[3]
    assert long[3].isascii() and "\\ud83c\\udf0d" in long[3] and "300 characters" in long[3] and len(long[3]) < 1200


@contract("responses.model")
def test_the_model_is_needed_and_known(responses):
    server = responses()
    body = {"input": "hi"}
    status, code, param, _ = server.refusal(**body, model="gpt-5")
    assert (status, code, param) == (404, "model_not_found", "model")
    answer = server.ask("POST", "", body)
    assert answer.status == 400 and b"missing_required_parameter" in answer.body
    assert server.ask("POST", "/input_tokens", body).status == 400


@contract("responses.sampling", "responses.max-output-tokens", "responses.thinking-budget", "responses.post-thinking")
def test_the_sampler_and_limits_are_taken_over(responses):
    job = responses().job(
        temperature=0,
        top_p=0.5,
        max_output_tokens=0,
        thinking_budget=7,
        post_thinking={"temperature": 0.1, "top_k": 40},
    )
    assert job.sampling == SamplingRequest(temperature=0, top_p=0.5)
    assert (job.max_tokens, job.max_tokens_is_open, job.thinking_budget) == (0, False, 7)
    assert job.post_thinking == SamplingRequest(temperature=0.1, top_k=20)
    assert (job.protocol, job.request_id) == ("openai-responses", "req_1")
    silent = responses().job()
    assert (silent.max_tokens, silent.sampling, silent.post_thinking) == (None, SamplingRequest(), None)


@contract("responses.input.string", "responses.instructions")
def test_a_text_is_a_users_turn_after_the_instructions(responses):
    job = responses().job(input="hello", instructions="Be brief.")
    assert [(m.role, m.content, m.place) for m in job.messages] == [
        ("developer", (Part(text="Be brief."),), "instructions"),
        ("user", (Part(text="hello"),), "input"),
    ]


@contract("responses.effort", "responses.template-kwargs", "responses.preserve-thinking")
def test_thinking_is_the_templates_to_decide(responses):
    kwargs = {"a": [1], "preserve_thinking": True}
    job = responses().job(reasoning={"effort": "high"}, chat_template_kwargs=kwargs, preserve_thinking=True)
    assert (job.effort, job.thinking, job.preserve_thinking, job.template_kwargs) == ("high", None, True, kwargs)
    assert responses().job(reasoning={"effort": "none"}).effort == "none"
    assert responses().job(reasoning={"effort": "auto"}).effort is None
    assert responses().job(chat_template_kwargs={"preserve_thinking": None}).preserve_thinking is None
    assert responses().job(chat_template_kwargs={"preserve_thinking": False}).preserve_thinking is False


@contract("responses.top-logprobs", "responses.include")
@pytest.mark.parametrize(
    ("asked", "rivals"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 3}, 3),
        ({"include": [LOGPROBS]}, 0),
        ({"include": [LOGPROBS, ENCRYPTED], "top_logprobs": 20}, 20),
        ({"include": [ENCRYPTED]}, None),
    ],
    ids=str,
)
def test_log_probabilities_are_asked_for_in_two_ways(responses, asked, rivals):
    assert responses().job(**asked).logprobs == rivals


@contract(
    "responses.object",
    "responses.service-tier",
    "responses.metadata",
    "responses.max-output-tokens",
    "responses.summary.echo",
    "responses.object.text",
)
def test_the_object_repeats_the_request(responses):
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}]
    made = responses().create(
        input="hi",
        instructions="Be brief.",
        metadata={"a": "b"},
        reasoning={"effort": "low", "summary": "concise"},
        tools=tools,
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        temperature=0.5,
        store=False,
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        max_tool_calls=3,
        top_logprobs=2,
    )
    output, usage = made.pop("output"), made.pop("usage")
    assert made == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "background": False,
        "completed_at": 1,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "model": "fake",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "concise"},
        "safety_identifier": "s",
        "service_tier": "default",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "tools": tools,
        "top_logprobs": 2,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": "u",
    }
    assert [item["type"] for item in output] == ["message"]
    assert usage == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }


@contract("responses.status", "responses.completed-at", "responses.usage", "limit.endings")
@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop_token", "completed", None),
        ("stop_string", "completed", None),
        ("output_limit", "incomplete", {"reason": "max_output_tokens"}),
        ("context_capacity", "incomplete", {"reason": "max_output_tokens"}),
        ("cancelled", "cancelled", None),
    ],
)
def test_every_finish_has_a_status(responses, finish, status, details):
    engine = FakeEngine(pieces=[("reasoning", "Hm"), "Hi"], finish=finish)
    made = responses(engine).create(input="hi")
    assert (made["status"], made["incomplete_details"]) == (status, details)
    assert made["completed_at"] == (1 if status == "completed" else None)
    assert [item["status"] for item in made["output"]] == [
        "completed",
        "completed" if status == "completed" else "incomplete",
    ]
    assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    *_, end = responses(engine).stream()
    assert end["type"] == f"response.{'completed' if status == 'completed' else 'incomplete'}"
    assert end["response"]["status"] == status


@contract("responses.count", "responses.count.same-prompt")
def test_a_count_is_of_the_same_prompt(responses):
    server = responses()
    body = {
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "Be brief.",
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": "required",
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "preserve_thinking": True,
        "parallel_tool_calls": True,
        "include": [ENCRYPTED, LOGPROBS],
    }
    seen = []

    async def count(job):
        seen.append(job)
        return 11

    server.engine.count = count
    answer = server.ask("POST", "/input_tokens", {"model": "fake", **body})
    assert answer.body == b'{"object":"response.input_tokens","input_tokens":11}'
    job, counted = server.job(**body, store=False), seen[0]
    prompt = ("messages", "effort", "tools", "forced_tool", "preserve_thinking", "template_kwargs", "thinking")
    assert {name: getattr(job, name) for name in prompt} == {name: getattr(counted, name) for name in prompt}
    assert len(server.engine.jobs) == 1


@contract("responses.count.refused", "responses.previous", "responses.graft", "responses.thinking-budget")
@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [
        ({"thinking_budget": 5}, "thinking_budget_not_supported", "thinking_budget"),
        ({"personality": "friendly"}, "personality_not_supported", "personality"),
        ({"conversation": "c"}, "conversation_not_supported", "conversation"),
        ({"include": [ENCRYPTED, "file_search_call.results"]}, "include_not_supported", "include[1]"),
        ({"stream": True}, "unknown_parameter", "stream"),
        ({"max_output_tokens": 5}, "unknown_parameter", "max_output_tokens"),
        ({"input": [{"type": "input_file"}]}, "input_item_not_supported", "input[0].type"),
        ({"previous_response_id": "resp_x"}, "response_not_found", "previous_response_id"),
        ({"graft": "v1"}, "unknown_graft", "graft"),
        ({"truncation": "auto"}, "truncation_not_supported", "truncation"),
        ({"tools": [{"type": "mcp"}]}, "tool_type_not_supported", "tools[0].type"),
    ],
    ids=lambda value: str(value)[:48],
)
def test_a_count_takes_prompt_fields_alone(responses, extra, code, param):
    status, *found, _ = responses().refusal(path="/input_tokens", **{"input": "hi", **extra})
    assert (status, *found) == (404 if code == "response_not_found" else 400, code, param)
