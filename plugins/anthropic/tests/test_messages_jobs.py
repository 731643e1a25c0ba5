"""The fields of a body: what each becomes, and why one is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninfer_anthropic.to_job import Asked, Leniency, prompt_job, to_job
from ninfer_anthropic.types import CountBody, MessagesBody
from ninfer_core.api import ApiError, ChatJob, Part, SamplingRequest
from ninfer_core.api.http import decode_now

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "find", "input_schema": {"type": "object"}}
STRICT = Leniency()
_body = msgspec.json.Decoder(MessagesBody)
_count = msgspec.json.Decoder(CountBody)


def asked(leniency: Leniency = STRICT, **fields: Any) -> Asked:
    body = decode_now(msgspec.json.encode({**BODY, **fields}), _body)
    return to_job(body, request_id="req_1", leniency=leniency)


def job(**fields: Any) -> ChatJob:
    return asked(**fields).job


def counted(**fields: Any) -> ChatJob:
    return prompt_job(decode_now(msgspec.json.encode({**BODY, **fields}), _count), STRICT).job


def refusal(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


@pytest.mark.contract("messages.limit.optional")
def test_the_least_a_body_holds():
    read = job()
    assert (read.max_tokens, read.max_tokens_is_open, read.thinking, read.tools, read.stops) == (
        None,
        False,
        None,
        (),
        (),
    )
    assert (read.sampling, read.post_thinking) == (SamplingRequest(), None)
    assert (read.request_id, read.protocol) == ("req_1", "anthropic-messages")


@pytest.mark.contract("messages.sampling", "messages.limit.whole")
def test_sampling_and_limits_reach_the_engine():
    read = job(max_tokens=7, temperature=0.25, top_p=0.5, top_k=40, stop_sequences=["a", "\n"])
    assert (read.max_tokens, read.stops) == (7, ("a", "\n"))
    assert read.sampling == SamplingRequest(temperature=0.25, top_p=0.5, top_k=20)
    assert job(top_k=5).sampling.top_k == 5


@pytest.mark.contract("messages.limit.zero")
@pytest.mark.parametrize("limit", [0, -1])
def test_a_request_without_output_is_refused(limit):
    assert refusal(max_tokens=limit) == ("invalid_value", "max_tokens")


@pytest.mark.contract("post.fields")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1.01}, ("invalid_value", "temperature")),
        ({"temperature": -0.01}, ("invalid_value", "temperature")),
        ({"top_p": 1.5}, ("invalid_value", "top_p")),
        ({"top_k": -1}, ("invalid_value", "top_k")),
        ({"max_tokens": 1.5}, ("invalid_type", "max_tokens")),
        ({"max_tokens": "7"}, ("invalid_type", "max_tokens")),
        ({"stop_sequences": "a"}, ("invalid_type", "stop_sequences")),
        ({"stop_sequences": [""]}, ("invalid_value", "stop_sequences")),
        ({"stop_sequences": ["a"] * 33}, ("invalid_value", "stop_sequences")),
        ({"stream": "yes"}, ("invalid_type", "stream")),
        ({"system": 3}, ("invalid_type", "system")),
        ({"messages": []}, ("invalid_value", "messages")),
        ({"messages": None}, ("invalid_type", "messages")),
        ({"messages": [{"role": "user"}]}, ("missing_required_parameter", "messages[0].content")),
        ({"messages": [{"role": "user", "content": None}]}, ("invalid_type", "messages[0].content")),
        ({"preserve_thinking": 1}, ("invalid_type", "preserve_thinking")),
        ({"graft": 1}, ("invalid_type", "graft")),
        ({"post_thinking": {"temperature": 1.5}}, ("invalid_value", "post_thinking.temperature")),
        ({"post_thinking": {"seed": 1 << 64}}, ("invalid_value", "post_thinking.seed")),
        ({"post_thinking": {"temprature": 1}}, ("unknown_parameter", "post_thinking.temprature")),
        ({"chat_template_kwargs": []}, ("invalid_type", "chat_template_kwargs")),
    ],
)
def test_a_malformed_value_is_refused_with_its_field(fields, expected):
    code, param = refusal(**fields)
    assert (code, (param or "").partition("[")[0] if param and "stop" in param else param) == expected


@pytest.mark.contract("messages.model")
@pytest.mark.parametrize("model", ["claude-opus-4-1", "x", "no/such model"])
def test_any_model_is_taken(model):
    assert job(model=model).messages


@pytest.mark.contract("messages.model")
def test_an_empty_model_is_refused():
    assert refusal(model="") == ("invalid_value", "model")
    with pytest.raises(ApiError, match="'model' is required"):
        decode_now(b'{"messages": [{"role": "user", "content": "hi"}]}', _body)


@pytest.mark.contract("messages.advisory", "messages.ignore-eos")
@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}},
        {"service_tier": "auto"},
        {"speed": "fast"},
        {"inference_geo": "eu"},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
        {"diagnostics": {"previous_message_id": None}},
        {"nobody_knows_this": {"deep": [1]}},
        {"ignore_eos": True},
        {"logit_bias": {"1": 100}},
        {"container": None, "mcp_servers": [], "graft": "", "tools": [], "stop_sequences": []},
        {"thinking": None, "output_config": {}, "tool_choice": None, "system": None, "temperature": None},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_advisory_or_asks_for_nothing_changes_nothing(fields):
    assert job(**fields) == job()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"graft": "v1"}, ("unknown_graft", "graft"), marks=pytest.mark.contract("messages.graft")),
        pytest.param(
            {"container": "c"},
            ("container_not_supported", "container"),
            marks=pytest.mark.contract("messages.tools.refused"),
        ),
        ({"container": {"skills": []}}, ("container_not_supported", "container")),
        pytest.param(
            {"mcp_servers": [{"type": "url", "url": "u", "name": "n", "authorization_token": "secret"}]},
            ("mcp_servers_not_supported", "mcp_servers"),
            marks=pytest.mark.contract("messages.tools.refused"),
        ),
        pytest.param(
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            ("response_format_not_supported", "output_config.format"),
            marks=pytest.mark.contract("messages.format.off"),
        ),
        ({"output_format": {"type": "json_schema", "schema": {}}}, ("response_format_not_supported", "output_format")),
    ],
)
def test_what_cannot_be_done_is_refused(fields, expected):
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert (caught.value.code, caught.value.param) == expected
    assert "secret" not in caught.value.message


def test_a_body_that_was_written_again_says_the_same():
    """Large ones are: a process of their own reads them and hands on what matters."""
    call = {"type": "tool_use", "id": "1", "name": "find", "input": {}}
    messages = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
    ]
    sent = msgspec.json.encode({**BODY, "messages": messages, "tools": [TOOL], "cache_control": {"type": "ephemeral"}})
    again = msgspec.json.encode(decode_now(sent, _body))
    jobs = [to_job(decode_now(one, _body), request_id="", leniency=STRICT) for one in (sent, again)]
    assert jobs[0] == jobs[1]


# ------------------------------------------------------------------ thinking


@pytest.mark.contract("messages.thinking.modes", "messages.thinking.budget", "messages.thinking.budget-over-limit")
@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        ({"type": "disabled"}, (False, None)),
        ({"type": "disabled", "budget_tokens": 5}, (False, None)),
        ({"type": "adaptive"}, (True, None)),
        ({"type": "adaptive", "display": "omitted"}, (True, None)),
        ({"type": "enabled", "budget_tokens": 1024}, (True, 1024)),
        ({"type": "enabled", "budget_tokens": 31999, "display": "summarized"}, (True, 31999)),
    ],
)
def test_thinking(thinking, expected):
    read = job(thinking=thinking, max_tokens=2000)
    assert (read.thinking, read.thinking_budget) == expected


@pytest.mark.contract("messages.thinking.budget")
@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        ({"type": "enabled", "budget_tokens": 1023}, ("invalid_value", "thinking.budget_tokens")),
        ({"type": "enabled", "budget_tokens": -1}, ("invalid_value", "thinking.budget_tokens")),
        ({"type": "enabled"}, ("missing_required_parameter", "thinking.budget_tokens")),
        ({"type": "adaptive", "budget_tokens": 2000}, ("invalid_value", "thinking.budget_tokens")),
        ({"type": "between_tools"}, ("invalid_value", "thinking.type")),
        ({"budget_tokens": 2000}, ("missing_required_parameter", "thinking.type")),
        ({"type": "adaptive", "display": "full"}, ("invalid_value", "thinking.display")),
        (True, ("invalid_type", "thinking")),
    ],
)
def test_thinking_that_means_nothing_is_refused(thinking, expected):
    assert refusal(thinking=thinking) == expected


@pytest.mark.contract("messages.effort")
@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
def test_an_effort_reaches_the_template(effort):
    assert job(output_config={"effort": effort}).effort == effort
    assert counted(output_config={"effort": effort}).effort == effort


@pytest.mark.parametrize("effort", ["minimal", "none", "", "HIGH"])
def test_an_effort_the_protocol_does_not_have_is_refused(effort):
    assert refusal(output_config={"effort": effort}) == ("invalid_value", "output_config.effort")


@pytest.mark.contract("messages.kwargs", "messages.preserve")
def test_template_variables_say_the_same_as_the_fields_or_nothing():
    read = job(
        chat_template_kwargs={"enable_thinking": True, "preserve_thinking": False, "reasoning_effort": "low", "x": 1}
    )
    assert (read.thinking, read.preserve_thinking, read.effort, read.template_kwargs) == (True, False, "low", {"x": 1})
    agreed = job(thinking={"type": "adaptive"}, chat_template_kwargs={"enable_thinking": True})
    assert (agreed.thinking, agreed.template_kwargs) == (True, {})
    unspecified = job(chat_template_kwargs={"enable_thinking": None, "y": None})
    assert (unspecified.thinking, unspecified.template_kwargs) == (None, {"y": None})
    off = job(chat_template_kwargs={"reasoning_effort": "none"})
    assert (off.thinking, off.effort) == (False, None)
    assert job(preserve_thinking=True).preserve_thinking is True


@pytest.mark.contract("messages.kwargs")
@pytest.mark.parametrize(
    ("fields", "name", "code"),
    [
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": False}, "invalid_value"),
        ({"thinking": {"type": "adaptive"}}, {"reasoning_effort": "none"}, "invalid_value"),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "high"}, "invalid_value"),
        ({"preserve_thinking": True}, {"preserve_thinking": False}, "invalid_value"),
        ({}, {"enable_thinking": "yes"}, "invalid_type"),
        ({}, {"reasoning_effort": 3}, "invalid_type"),
        ({}, {"reasoning_effort": "huge"}, "invalid_value"),
    ],
)
def test_template_variables_that_disagree_are_refused(fields, name, code):
    assert refusal(**fields, chat_template_kwargs=name) == (code, f"chat_template_kwargs.{next(iter(name))}")


@pytest.mark.contract("post.fields")
def test_the_sampler_of_the_answer():
    assert job(post_thinking={}).post_thinking == SamplingRequest()
    everything = {
        "temperature": 0.2,
        "top_p": 0.5,
        "top_k": 99,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": -5,
    }
    assert job(post_thinking=everything).post_thinking == SamplingRequest(**{**everything, "top_k": 20})


@pytest.mark.contract("messages.display.count")
def test_display_is_for_the_answer_alone():
    omitted = asked(thinking={"type": "adaptive", "display": "omitted"})
    summarized = asked(thinking={"type": "adaptive", "display": "summarized"})
    assert (omitted.omits_thinking, summarized.omits_thinking) == (True, False)
    assert omitted.job == summarized.job


# ------------------------------------------------------------------ counts


@pytest.mark.contract("messages.count", "messages.count.output-fields", "messages.format.count")
def test_a_count_reads_the_same_prompt_and_nothing_of_the_answer():
    prompt = {
        "system": "s",
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "find"},
        "thinking": {"type": "disabled"},
        "preserve_thinking": True,
        "chat_template_kwargs": {"x": 1},
        "cache_control": {"type": "ephemeral"},
    }
    output = {"max_tokens": 0, "stream": "x", "temperature": 9, "top_k": -1, "stop_sequences": 3, "post_thinking": 1}
    read, count = job(**prompt), counted(**prompt, **output, output_config={"format": {"type": "json_schema"}})
    for name in (
        "messages",
        "tools",
        "forced_tool",
        "thinking",
        "effort",
        "preserve_thinking",
        "template_kwargs",
        "prefill",
    ):
        assert getattr(read, name) == getattr(count, name), name
    assert read.cache_boundary and count.cache_boundary


@pytest.mark.parametrize("fields", [{"thinking": {"type": "x"}}, {"container": "c"}, {"graft": "g"}, {"tools": [{}]}])
def test_a_count_refuses_what_makes_no_prompt(fields):
    with pytest.raises(ApiError):
        counted(**fields)


# ------------------------------------------------------------------ --strip-volatile-system

BILLING = "x-anthropic-billing-header: cc_version=2.0.1; cch={};"
STRIP = Leniency(volatile_system=True)


def system_parts(system: Any, leniency: Leniency = STRIP) -> list[str] | None:
    first = asked(leniency, system=system).job.messages[0]
    return [part.text for part in first.content] if first.role == "system" else None


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_the_billing_line_is_left_out_on_request_llama_cpp_pr_20623():
    one, two = BILLING.format("aaaa"), BILLING.format("bbbb")
    assert system_parts(blocks(one, "You help.")) == system_parts(blocks(two, "You help.")) == ["You help."]
    assert system_parts(one + "\nYou help.") == ["You help."]
    assert system_parts(blocks(one + "\nYou", "help.")) == ["You", "help."]
    assert system_parts(one) is None
    assert system_parts(blocks(one)) is None


@pytest.mark.parametrize(
    "system", ["You help.", "You\nx-anthropic-billing-header: y", " x-anthropic-billing-header: y"]
)
def test_only_a_first_line_is_taken_for_it(system):
    assert system_parts(system) == [system]
    assert system_parts(blocks("You help.", BILLING)) == ["You help.", BILLING]


def test_without_the_option_system_text_stays_as_it_is():
    assert system_parts(blocks(BILLING, "You help."), STRICT) == [BILLING, "You help."]


def test_the_hint_of_a_shortened_block_stays():
    system = [{"type": "text", "text": BILLING + "\nYou help.", "cache_control": {"type": "ephemeral"}}]
    assert asked(STRIP, system=system).job.messages[0].content == (Part(text="You help.", cache_boundary=True),)
