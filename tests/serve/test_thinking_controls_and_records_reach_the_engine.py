"""Log probabilities, thinking budgets and the answer's sampler, from a chat body through the real engine and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

CHAT = "/v1/chat/completions"
CONTEXT = 256
SCRIPT = {
    "replies": [
        {"match": "ponder", "text": "a very long thought indeed</think>\n\nDone.", "draft": [3, 0]},
        {"match": "even", "text": "t</think>\n\nab", "logits": {"a": 20, "b": 20, "z": 20}},
        {"match": "smile", "pieces_bytes": [[0xF0, 0x9F], [0x98, 0x80, 0x21], [0xC3]], "draft": [1]},
        {"match": "stop", "pieces": ["Hello", " STOP", "PED now"]},
        {"match": "hidden", "pieces": ["Look", "<|image_pad|>"]},
    ],
    "default": {"text": "abc"},
}
CLOSE = "\n\nTime to answer.\n</think>\n\n"  # what the scripted family closes reasoning with
CLOSE_TOKENS = len(CLOSE) - len("</think>") + 1


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    with scripted(SCRIPT, "--max-context", str(CONTEXT)) as running:
        yield running


def chat(server: Any, question: str, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 1, "presence_penalty": 0, **more}
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    if not more.get("stream"):
        return response.json()["choices"][0]
    *events, _end = response.text.removesuffix("\n\n").split("\n\n")
    return [msgspec.json.decode(event.removeprefix("data: "))["choices"][0] for event in events]


def records(choice: Any) -> list[Any]:
    return choice["logprobs"]["content"]


@pytest.mark.contract("logprobs.channel")
def test_reasoning_and_the_stop_token_have_no_record(server):
    choice = chat(server, "ponder", logprobs=True)
    assert choice["message"]["reasoning_content"] == "a very long thought indeed"
    assert "".join(record["token"] for record in records(choice)) == choice["message"]["content"] == "Done."
    assert all(record["top_logprobs"] == [] for record in records(choice))
    assert chat(server, "ponder")["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True], ids=["mlx-vlm-pr-1076-aggregate", "mlx-vlm-pr-1076-stream"])
@pytest.mark.contract("logprobs.record", "logprobs.travel")
def test_a_character_cut_in_two_has_exact_bytes(server, stream):
    made = chat(server, "smile", logprobs=True, enable_thinking=False, stream=stream)
    found = [record for choice in (made if stream else [made]) if choice["logprobs"] for record in records(choice)]
    assert [(record["token"], record["bytes"]) for record in found] == [
        ("\ufffd", [0xF0, 0x9F]),
        ("\ufffd\ufffd!", [0x98, 0x80, 0x21]),
        ("\ufffd", [0xC3]),
    ]
    if stream:
        text = {choice["delta"]["content"]: choice["logprobs"] for choice in made if choice["delta"].get("content")}
        assert [len(logprobs["content"]) for logprobs in text.values()] == [2, 1]
        assert list(text) == ["\U0001f600!", "\ufffd"]


@pytest.mark.contract("logprobs.stops")
def test_a_stop_string_drops_the_records_of_what_it_cuts(server):
    choice = chat(server, "stop", logprobs=True, enable_thinking=False, stop="STOPPED")
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello ", "stop")
    assert [record["token"] for record in records(choice)] == ["Hello", " STOP"]


def test_a_token_without_text_is_reported_before_the_finish(server):
    *_, text, late, finish = chat(server, "hidden", logprobs=True, enable_thinking=False, stream=True)
    assert (text["delta"], [record["token"] for record in records(text)]) == ({"content": "Look"}, ["Look"])
    assert (late["delta"], [record["token"] for record in records(late)]) == ({}, ["<|image_pad|>"])
    assert (finish["logprobs"], finish["finish_reason"]) == (None, "stop")


@pytest.mark.parametrize("count", [pytest.param(20, id="sglang-5984")])
@pytest.mark.contract("logprobs.values", "logprobs.truncation")
def test_log_probabilities_describe_the_distribution_before_truncation(server, count):
    """As many rivals as asked for, likeliest first, every number finite."""
    asked = {"logprobs": True, "top_logprobs": count, "enable_thinking": False, "top_k": 1, "top_p": 0.1, "seed": 1}
    for record in records(chat(server, "even", **asked)):
        values = [rival["logprob"] for rival in record["top_logprobs"]]
        assert len(values) == count and values == sorted(values, reverse=True)
        assert all(map(math.isfinite, [record["logprob"], *values]))
        # three even tokens share nearly all of it, or four where the script says another one
        assert record["logprob"] == pytest.approx(-math.log(sum(value > -5 for value in values)), abs=1e-4)


@pytest.mark.parametrize(
    "temperature", [pytest.param(value, id=f"mlx-omni-server-pr-56-{value}") for value in (1e-38, 1e-45, 1e-300)]
)
def test_a_vanishing_temperature_leaves_every_number_finite(server, temperature):
    asked = {"logprobs": True, "top_logprobs": 3, "enable_thinking": False, "temperature": temperature}
    for record in records(chat(server, "hi", **asked)):
        assert all(isinstance(one["logprob"], float) for one in (record, *record["top_logprobs"]))


@pytest.mark.parametrize("budget", [1, 4, 11])
@pytest.mark.contract("chat.budget.close")
def test_a_spent_budget_closes_the_reasoning_in_the_reasoning_channel(server, budget):
    choice = chat(server, "ponder", thinking_budget=budget)
    thought = "a very long thought indeed"[:budget]
    assert choice["message"]["reasoning_content"] == thought + CLOSE.partition("</think>")[0].rstrip()
    assert choice["message"]["content"] == "Done."
    chunks = chat(server, "ponder", thinking_budget=budget, stream=True)
    streamed = "".join(chunk["delta"].get("reasoning_content", "") for chunk in chunks)
    assert streamed == choice["message"]["reasoning_content"]


def test_a_budget_no_output_can_reach_changes_nothing(server):
    assert chat(server, "ponder", thinking_budget=1 << 70) == chat(server, "ponder")


@pytest.mark.contract("chat.budget.counts", "chat.budget.window")
def test_inserted_tokens_count_against_the_output_limit(server):
    """The budget shrinks to what leaves room for the close and one token."""
    limit = CLOSE_TOKENS + 3
    choice = chat(server, "ponder", thinking_budget=limit - 2, max_tokens=limit)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("D", "length")
    assert choice["message"]["reasoning_content"].startswith("a \n\nTime")


@pytest.mark.contract("chat.budget.silent", "post.never")
def test_a_request_that_does_not_think_ignores_budget_and_answer_sampler(server):
    controls = {"thinking_budget": 1, "post_thinking": {"temperature": 0, "seed": 3}}
    asked = {"enable_thinking": False, "logprobs": True, "top_logprobs": 3, "seed": 4}
    assert chat(server, "even", **asked, **controls) == chat(server, "even", **asked)


@pytest.mark.parametrize(
    ("post", "temperature"), [(None, 1.0), ({}, 0.2), ({"top_k": 5}, 0.2), ({"temperature": 0.5}, 0.5)], ids=str
)
@pytest.mark.contract("chat.post-thinking")
def test_the_answers_sampler_is_seen_in_its_log_probabilities(server, post, temperature):
    """The logits of the answer's last token are 20 and 0, so a temperature can be read off the difference."""
    choice = chat(server, "ponder", logprobs=True, top_logprobs=2, post_thinking=post)
    first, second = (rival["logprob"] for rival in records(choice)[-1]["top_logprobs"])
    assert first - second == pytest.approx(20 / temperature, rel=1e-4)


@pytest.mark.contract("post.seed")
def test_the_answers_seed_is_its_own(server):
    """The reasoning is the request's seed's, the answer follows the second one; left out, it goes on with the first."""
    asked = {"seed": 1, "ignore_eos": True, "thinking_budget": 3, "max_tokens": CLOSE_TOKENS + 20}
    answers = {
        seed: chat(server, "even", **asked, post_thinking={"temperature": 1, "top_k": 20, "seed": seed})
        for seed in (None, 1, 2, 3)
    }
    assert answers[None] == answers[1]
    assert len({choice["message"]["content"] for choice in answers.values()}) > 1
    assert len({choice["message"]["reasoning_content"] for choice in answers.values()}) == 1


@pytest.mark.parametrize(
    "over",
    [
        pytest.param(-1, id="kon-91-one-left"),
        pytest.param(0, id="kon-91-full"),
        pytest.param(1, id="pi-5930-over"),
    ],
)
def test_a_huge_output_limit_is_clamped_and_a_prompt_too_long_is_refused(server, over):
    body = {"messages": [{"role": "user", "content": ""}], "enable_thinking": False}
    overhead = server.post(CHAT, {**body, "max_tokens": 0}).json()["usage"]["prompt_tokens"]
    body["messages"][0]["content"] = "x" * (CONTEXT - overhead + over)
    response = server.post(CHAT, {**body, "max_tokens": 128_000, "logprobs": True, "thinking_budget": 128_000})
    if over > 0:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (CONTEXT + 1, CONTEXT)
    else:
        choice = response.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("abc"[: 1 - over], "length")
        assert len(records(choice)) == 1 - over
