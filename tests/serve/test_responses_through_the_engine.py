"""Responses over the real engine on a script: prompts, continuation, forced calls and limits as a client gets them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

contract = pytest.mark.contract
PATH = "/v1/responses"
CONTEXT = 1024
CALL = "<tool_call>\n<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>"
QUOTING = "Write <tool_call> before a call and </tool_call> after it."
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
TOOLS = [
    {"type": "function", "name": "now"},
    {
        "type": "namespace",
        "name": "mcp__x",
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
        ],
    },
]
SCRIPT = {
    "replies": [
        {"match": "namespaced", "text": "Hm</think>\n\nLook." + CALL % ("mcp__x.f", "a", "1.0")},
        {"match": "undeclared", "text": "Hm</think>\n\nLook." + CALL % ("other", "a", "1.0")},
        {"match": "now please", "text": NOW},
        {"match": "two calls", "text": "</think>\n\n" + NOW + "\n" + NOW},
        {"match": "quoting", "text": f"</think>\n\n{QUOTING}"},
        {"match": "the-result", "text": "It is done.</think>\n\nFine."},
        {"match": "smile", "pieces_bytes": [[0xF0, 0x9F], [0x98, 0x80], [0x21]]},
        {"match": "long", "text": "a", "finish": "never"},
    ],
    "default": {"text": "Hm.</think>\n\nOK."},
}


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    with scripted(SCRIPT, "--max-context", str(CONTEXT), "--prefill-chunk", "256", "--greedy") as running:
        yield running


def create(server: Any, input: Any, **more: Any) -> dict[str, Any]:
    response = server.post(PATH, {"model": "scripted", "input": input, **more})
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Any, input: Any, **more: Any) -> dict[str, Any]:
    """The error, which comes as an ordinary answer whether a stream was asked for or not."""
    for stream in (False, True):
        response = server.post(PATH, {"model": "scripted", "input": input, "stream": stream, **more})
        assert response.status_code == 400, response.text
    return response.json()["error"]


def count(server: Any, input: Any, **more: Any) -> int:
    response = server.post(f"{PATH}/input_tokens", {"model": "scripted", "input": input, **more})
    assert response.status_code == 200, response.text
    return response.json()["input_tokens"]


def get(server: Any, id: str) -> Any:
    async def ask() -> Any:
        async with server.client() as client:
            return await client.get(f"{PATH}/{id}")

    return server.runner.run(ask())


def texts(response: dict[str, Any]) -> list[tuple[str, str]]:
    """Type and text of each output Item; of a call, its names and arguments."""
    return [
        (
            item["type"],
            " ".join(filter(None, (item.get("namespace"), item["name"], item["arguments"])))
            if item["type"] == "function_call"
            else item["content"][0]["text"],
        )
        for item in response["output"]
    ]


@contract(
    "responses.namespace.restored", "responses.calls.declared", "responses.tools.rendered", "responses.choice.auto-none"
)
def test_a_call_to_a_function_of_a_namespace_is_an_item(server):
    made = create(server, "namespaced", tools=TOOLS)
    assert texts(made) == [("reasoning", "Hm"), ("message", "Look."), ("function_call", 'mcp__x f {"a":1.0}')]
    assert made["status"] == "completed"
    undeclared = create(server, "undeclared", tools=TOOLS)
    assert [kind for kind, _ in texts(undeclared)] == ["reasoning", "message"]
    assert "<function=other>" in texts(undeclared)[1][1]
    silent = create(server, "namespaced", tools=TOOLS, tool_choice="none")
    assert [kind for kind, _ in texts(silent)] == ["reasoning", "message"]
    # an earlier call does not offer its function again
    past = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "1", "namespace": "mcp__x", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "b"},
    ]
    silent = create(server, [*past, {"role": "user", "content": "namespaced"}], tools=TOOLS, tool_choice="none")
    assert [kind for kind, _ in texts(silent)] == ["reasoning", "message"]


@contract("responses.calls.loop", "responses.chain.history", "responses.count.same-prompt", "responses.chain.path")
@pytest.mark.parametrize("thread", [pytest.param(0, id="vllm-43244")])
def test_a_chain_and_a_replay_are_one_prompt(server, thread):
    first = create(server, "namespaced", tools=TOOLS, instructions="Be brief.", preserve_thinking=True)
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "the-result"}
    chained = {"input": [result], "previous_response_id": first["id"], "tools": TOOLS}
    opening = {"role": "user", "content": "namespaced"}
    replayed = {"input": [opening, *first["output"], result], "tools": TOOLS, "preserve_thinking": True}
    second = create(server, **chained)
    assert texts(second) == [("reasoning", "It is done."), ("message", "Fine.")]
    again = create(server, **replayed)
    assert texts(again) == texts(second)
    tokens = {count(server, **chained), count(server, **replayed)}
    assert tokens == {second["usage"]["input_tokens"]} == {again["usage"]["input_tokens"]}
    # without the thoughts of the closed turn the prompt is another
    third = {"input": "x", "previous_response_id": second["id"]}
    assert count(server, **third) > count(server, **third, preserve_thinking=False)
    assert count(server, **third, instructions="Be brief.") > count(server, **third)


@contract("responses.choice.forced", "responses.choice.thinking", "responses.choice.named")
@pytest.mark.parametrize("choice", [{"type": "function", "name": "now"}, "required"], ids=["named", "required"])
def test_a_forced_call_is_first_and_turns_default_thinking_off(server, choice):
    tools = TOOLS[:1] if choice == "required" else TOOLS
    made = create(server, "now please", tools=tools, tool_choice=choice)
    assert texts(made) == [("function_call", "now {}")]
    for asked in ({"reasoning": {"effort": "low"}}, {"chat_template_kwargs": {"enable_thinking": True}}):
        error = refused(server, "now please", tools=tools, tool_choice=choice, **asked)
        assert error["code"] == "tool_choice_not_supported"
    quiet = {"reasoning": {"effort": "none"}}
    assert texts(create(server, "now please", tools=tools, tool_choice=choice, **quiet)) == texts(made)


@contract("responses.stream.held")
@pytest.mark.parametrize("thread", [pytest.param(0, id="vllm-22975")])
def test_markup_that_opens_no_function_is_text_and_other_text_is_not_held(server, thread):
    body = {"model": "scripted", "input": "quoting", "tools": TOOLS, "stream": True}
    stream = server.post(PATH, body).text
    said = [event["delta"] for event in events(stream) if event["type"] == "response.output_text.delta"]
    assert "".join(said) == added_up(stream)["output"][-1]["content"][0]["text"] == QUOTING
    # the space before a possible marker waits with it
    assert said[:5] == list("Write")


@contract("responses.usage.counted")
def test_counts_include_a_withheld_stop_token_and_the_reasoning_channel(server):
    usage = create(server, "hi")["usage"]
    # Hm. </think> and its line breaks, OK. and the stop token: a byte or a control token each
    assert usage["output_tokens"] == len("Hm.") + 1 + len("\n\n") + len("OK.") + 1
    assert len("Hm.") <= usage["output_tokens_details"]["reasoning_tokens"] <= len("Hm.") + 3
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@contract("responses.output.calls")
def test_several_calls_are_items_in_order(server):
    made = create(server, "two calls", tools=TOOLS)
    assert texts(made) == [("function_call", "now {}")] * 2
    first, second = made["output"]
    assert len({first["id"], second["id"], first["call_id"], second["call_id"]}) == 4
    assert first["id"].startswith("fc_") and first["call_id"].startswith("call_")


@contract("responses.overlong", "media.overflow")
@pytest.mark.parametrize("thread", [pytest.param(0, id="ik_llama-2420"), pytest.param(0, id="llama.cpp-15780")])
def test_a_prompt_over_the_context_is_refused_and_a_large_limit_is_not(server, thread):
    per_byte = count(server, "aa") - count(server, "a")
    room = CONTEXT - count(server, "long:")
    assert per_byte == 1
    error = refused(server, "long:" + "x" * (room + 1))
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == (
        "context_length_exceeded",
        CONTEXT + 1,
        CONTEXT,
    )
    made = create(server, "long:" + "x" * (room - 50), max_output_tokens=128_000)
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert made["max_output_tokens"] == 128_000
    assert made["usage"]["input_tokens"] == CONTEXT - 50
    silent = create(server, "long:" + "x" * (room - 50))
    assert (silent["status"], silent["max_output_tokens"]) == ("incomplete", None)


@contract("responses.max-output-tokens")
def test_no_output_at_all_is_incomplete(server):
    made = create(server, "hi", max_output_tokens=0)
    assert (made["status"], made["output"], made["usage"]["output_tokens"]) == ("incomplete", [], 0)
    child = create(server, "more", previous_response_id=made["id"])
    assert child["status"] == "completed"


@contract("responses.effort", "responses.template-kwargs", "responses.thinking-budget")
def test_thinking_is_turned_off_and_bounded(server):
    for quiet in ({"reasoning": {"effort": "none"}}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert "reasoning" not in dict(texts(create(server, "hi", **quiet)))
    assert count(server, "hi", reasoning={"effort": "low"}) > count(server, "hi")
    bounded = create(server, "long", thinking_budget=3, max_output_tokens=400)
    assert bounded["usage"]["output_tokens_details"]["reasoning_tokens"] < 300
    for kwargs in ({"messages": []}, {"bos_token": "x"}):
        assert refused(server, "hi", chat_template_kwargs=kwargs)["code"] == "invalid_value"


@contract("responses.system.positions")
@pytest.mark.parametrize(
    "roles",
    [
        pytest.param(["user", "assistant", "system", "user"], id="qwen3.8-244"),
        pytest.param(["system", "system", "user"], id="vllm-41114"),
        pytest.param(["developer", "user"], id="developer"),
        pytest.param(["system"], id="dify-33152"),
    ],
)
def test_system_turns_may_stand_anywhere(server, roles):
    items = [{"role": role, "content": f"n{at}"} for at, role in enumerate(roles)]
    made = create(server, items, instructions="First.", max_output_tokens=2)
    assert made["status"] == "incomplete"


@contract("logprobs.responses")
def test_records_are_exact_where_characters_are_cut(server):
    made = create(
        server, "smile", reasoning={"effort": "none"}, include=["message.output_text.logprobs"], top_logprobs=1
    )
    part = made["output"][-1]["content"][0]
    assert part["text"] == "\U0001f600!"
    assert bytes(byte for record in part["logprobs"] for byte in record["bytes"]) == "\U0001f600!".encode()
    assert part["logprobs"][0]["token"] == "\ufffd"


@contract("responses.stream.not-started")
@pytest.mark.parametrize("thread", [pytest.param(0, id="RapidMLX-1849"), pytest.param(0, id="omlx-3036")])
def test_what_is_wrong_with_a_request_is_never_said_inside_a_stream(server, thread):
    for more in (
        {"input": "x" * 4000},
        {"input": "hi", "chat_template_kwargs": {"tools": []}},
        {"input": [{"type": "x"}]},
    ):
        assert refused(server, **more)["code"] in (
            "context_length_exceeded",
            "invalid_value",
            "input_item_not_supported",
        )


def events(stream: str) -> list[dict[str, Any]]:
    frames = stream.removesuffix("\n\n").split("\n\n")
    return [msgspec.json.decode(frame.partition("data: ")[2]) for frame in frames]


def added_up(stream: str) -> dict[str, Any]:
    """The terminal object; deltas have to lead there."""
    grown: dict[str, str] = {}
    for event in events(stream):
        if event["type"].endswith(".delta") and "summary" not in event["type"]:
            grown[event["item_id"]] = grown.get(event["item_id"], "") + event["delta"]
    response = event["response"]
    for item in response["output"]:
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert grown.pop(item["id"], "") == whole
    assert grown == {}
    return response


def bare(response: dict[str, Any]) -> dict[str, Any]:
    """Without what two answers to one body may differ in."""
    stem = response["id"].removeprefix("resp_").encode()
    same = msgspec.json.decode(msgspec.json.encode(response).replace(stem, b""))
    return {**same, "created_at": 0, "completed_at": 0}


PIECES = [
    "a",
    "é",
    "\U0001f30d",
    " ",
    "\n",
    "</think>",
    "\n\n",
    "<tool_call>",
    NOW,
    NOW[:20],
    CALL % ("mcp__x.f", "a", "2"),
]
DRAFTS: tuple[dict[str, Any], ...] = ({}, {"draft": [0, 2, 1]}, {"draft": [5, 1, 3]})


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """A text of these pieces, cut into tokens anywhere."""
    spelled = "".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=7))).encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(len(spelled) - 1, 1)), max_size=8)))
    edges = [0, *(cut for cut in cuts if cut < len(spelled)), len(spelled)]
    pieces = [list(spelled[a:b]) for a, b in itertools.pairwise(edges)]
    return {"pieces_bytes": pieces, "finish": draw(st.sampled_from(["stop", "never"]))}


ASKS = st.fixed_dictionaries(
    {"max_output_tokens": st.sampled_from([0, 1, 7, 40, 200])},
    optional={
        "include": st.just(["message.output_text.logprobs", "reasoning.encrypted_content"]),
        "reasoning": st.sampled_from([{"summary": "auto"}, {"effort": "none"}]),
        "tools": st.just(TOOLS),
    },
)


def check(scripted: Any, reply: dict[str, Any], asked: dict[str, Any]) -> None:
    lines = [{**reply, **draft, "match": f"d{at}"} for at, draft in enumerate(DRAFTS)]
    with scripted({"replies": lines}, "--max-context", "2048") as server:
        answers = []
        for at in range(len(DRAFTS)):
            body = {"model": "scripted", "input": f"d{at}", "temperature": 0, **asked}
            whole = server.post(PATH, body)
            assert whole.status_code == 200, whole.text
            streamed = added_up(server.post(PATH, {**body, "stream": True}).text)
            assert bare(streamed) == bare(whole.json())
            assert get(server, streamed["id"]).json() == streamed
            answers.append(bare(streamed)["output"])
        assert answers[0] == answers[1] == answers[2]


COMMON: Any = {
    "deadline": None,
    "phases": set(Phase) - {Phase.explain},
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@contract("responses.stream.adds-up")
@settings(max_examples=8, derandomize=True, **COMMON)
@given(reply=replies(), asked=ASKS)
def test_a_stream_adds_up_to_the_aggregate_however_tokens_and_rounds_are_cut(scripted, reply, asked):
    check(scripted, reply, asked)


@pytest.mark.slow
@settings(max_examples=300, **COMMON)
@given(reply=replies(), asked=ASKS)
def test_a_stream_adds_up_to_the_aggregate_in_the_long_run(scripted, reply, asked):
    check(scripted, reply, asked)
