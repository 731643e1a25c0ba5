"""Faults of other servers in what they say: each case is named after the thread that tells of it.

Every case is asked for as one answer and as a stream, with the rounds cut in several ways; all of them have to agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

CHAT, RAW = "/v1/chat/completions", "/completion"
ROUNDS: tuple[dict[str, Any], ...] = ({}, {"draft": [1]}, {"draft": [3, 0, 2]}, {"draft": [40]})  # right tokens a round
SMILE = [[0xF0], [0x9F], [0x98], [0x80], [0x20, 0xC3], [0xA5]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the model says, what is asked, and what has to come of it."""

    says: dict[str, Any]
    content: str
    reasoning: str | None = None  # None: asked for without thinking
    finish: str = "stop"
    asks: dict[str, Any] = field(default_factory=dict)


CASES = {
    # characters that tokens and rounds cut in pieces
    "mlx-vlm-pr-1076": Case(says={"pieces_bytes": SMILE}, content="\U0001f600 å"),
    "ik-llama-780": Case(says={"pieces_bytes": [[0xE2, 0x82], [0xAC, 0xE2], [0x82, 0xAC]]}, content="€€"),
    "llama.cpp-pr-28926-limit": Case(
        says={"pieces_bytes": SMILE}, asks={"max_tokens": 3}, content="\ufffd", finish="length"
    ),
    "llama.cpp-pr-28926-end": Case(says={"pieces_bytes": [[0x41], [0xF0, 0x9F]]}, content="A\ufffd"),
    "llama.cpp-pr-28926-thought": Case(
        says={"pieces_bytes": [*SMILE, list(b"</think>\n\n"), *SMILE]},
        reasoning="\U0001f600 å",
        content="\U0001f600 å",
    ),
    # text that was held back for a stop string, a character or a tag
    "llama.cpp-pr-9867": Case(says={"text": "answer\n"}, asks={"stop": ["\n\nQ"]}, content="answer\n"),
    "llama.cpp-pr-9867-limit": Case(
        says={"text": "answer\n\nmore"},
        asks={"stop": ["\n\nQ"], "max_tokens": 8},
        content="answer\n\n",
        finish="length",
    ),
    "wllama-263": Case(says={"text": "a<think"}, content="a<think"),
    "wllama-263-thought": Case(says={"text": "a</thin"}, reasoning="a</thin", content=""),
    # stop strings, which act in the thought and in the answer and never across the two
    "vllm-51641": Case(
        says={"text": "It is so.</think>\n\nHello"},
        asks={"stop": ["Question:"]},
        reasoning="It is so.",
        content="Hello",
    ),
    "vllm-51641-across": Case(
        says={"text": "Quest</think>\n\nion: Hello"},
        asks={"stop": ["Question:", "t\n\nion"]},
        reasoning="Quest",
        content="ion: Hello",
    ),
    "vllm-53066": Case(
        says={"text": "Ask a Question: why</think>\n\nHello"},
        asks={"stop": ["Question:"]},
        reasoning="Ask a ",
        content="",
    ),
    "vllm-53066-answer": Case(
        says={"text": "Ask.</think>\n\nOne Question: two"},
        asks={"stop": ["Question:"]},
        reasoning="Ask.",
        content="One ",
    ),
    # a thought that is cut off is a thought
    "rapidmlx-575": Case(
        says={"text": "still thinking about it</think>\n\nHello"},
        asks={"max_tokens": 14},
        reasoning="still thinking",
        content="",
        finish="length",
    ),
    "fastflowlm-739": Case(says={"text": "still thinking"}, reasoning="still thinking", content=""),
}


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    replies = [
        {**case.says, **rounds, "match": f"{name}/{at}."}
        for name, case in CASES.items()
        for at, rounds in enumerate(ROUNDS)
    ]
    limits = [{"match": f"exactly/{at}.", "text": "abc", **rounds} for at, rounds in enumerate(ROUNDS)]
    with scripted({"replies": [*replies, *limits]}, "--greedy", "--max-context", "512") as running:
        yield running


def chat(server: Any, question: str, **asks: Any) -> dict[str, Any]:
    """What a client makes of one chat answer."""
    body = {"messages": [{"role": "user", "content": question}], **asks}
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = {"reasoning": "", "content": "", "bytes": b""}
    choices = [response.json()["choices"][0]] if not asks.get("stream") else list(chunks(response.text))
    for choice in choices:
        said = choice.get("message") or choice["delta"]
        made["reasoning"] += said.get("reasoning_content") or ""
        made["content"] += said.get("content") or ""
        records = (choice.get("logprobs") or {}).get("content") or []
        made["bytes"] += b"".join(bytes(record["bytes"]) for record in records)
    return {**made, "finish": choices[-1]["finish_reason"]}


def chunks(text: str) -> Iterator[Any]:
    *events, end = text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    for event in events:
        yield from msgspec.json.decode(event.removeprefix("data: "))["choices"]


@pytest.mark.contract("run.drafts")
@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
@pytest.mark.parametrize("rounds", range(len(ROUNDS)), ids=["alone", "twos", "mixed", "whole"])
@pytest.mark.parametrize("name", CASES)
def test_a_chat_answer_is_what_the_model_said(server, name, rounds, stream):
    case = CASES[name]
    asked = {**case.asks, "enable_thinking": case.reasoning is not None, "stream": stream, "logprobs": True}
    made = chat(server, f"{name}/{rounds}.", **asked)
    assert (made["reasoning"], made["content"], made["finish"]) == (case.reasoning or "", case.content, case.finish)
    if "pieces_bytes" in case.says and case.reasoning is None:
        # the records spell what was said byte for byte, the parts of a broken character too
        said = [bytes(piece) for piece in case.says["pieces_bytes"]]
        assert made["bytes"] == b"".join(said[: case.asks.get("max_tokens")])


@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
@pytest.mark.parametrize("rounds", range(len(ROUNDS)), ids=["alone", "twos", "mixed", "whole"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.reasoning is None])
def test_a_completion_is_what_the_model_said(server, name, rounds, stream):
    case = CASES[name]
    asked = {("n_predict" if key == "max_tokens" else key): value for key, value in case.asks.items()}
    response = server.post(RAW, {"prompt": f"{name}/{rounds}.", **asked, "stream": stream})
    made = parts(response.text, stream)
    assert "".join(part["content"] for part in made) == case.content
    assert made[-1]["stop_type"] == {"stop": "eos", "length": "limit"}[case.finish]


def parts(text: str, stream: bool) -> list[Any]:
    events = text.removesuffix("\n\n").split("\n\n") if stream else [text]
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in events]


@pytest.mark.contract("run.usage")
@pytest.mark.parametrize("stream", [False, True], ids=["aggregate", "stream"])
@pytest.mark.parametrize("rounds", range(len(ROUNDS)), ids=["alone", "twos", "mixed", "whole"])
@pytest.mark.parametrize(
    ("n_predict", "content", "predicted", "stop_type"),
    [
        pytest.param(0, "", 0, "limit", id="llama.cpp-4047-none"),
        pytest.param(1, "a", 1, "limit", id="llama.cpp-4047-one"),
        pytest.param(2, "ab", 2, "limit", id="llama.cpp-9933-two"),
        pytest.param(-1, "abc", 4, "eos", id="llama.cpp-9933-minus-one"),
        pytest.param(-2, "abc", 4, "eos", id="llama.cpp-9933-minus-two"),
    ],
)
def test_a_round_never_goes_over_what_was_asked(server, n_predict, content, predicted, stop_type, rounds, stream):
    asked = {"prompt": f"exactly/{rounds}.", "n_predict": n_predict, "return_tokens": True, "stream": stream}
    response = server.post(RAW, asked)
    assert "[DONE]" not in response.text
    made = parts(response.text, stream)
    assert "".join(part["content"] for part in made) == content
    last = made[-1]
    assert (last["tokens_predicted"], last["stop_type"], last["truncated"]) == (predicted, stop_type, False)
    fields = ["content", "generation_settings/n_predict"]
    short = server.post(RAW, {**asked, "stream": False, "response_fields": fields}).json()
    assert set(short) == set(fields)
    assert short["content"] == content
    assert n_predict < 0 or short["generation_settings/n_predict"] == n_predict


@pytest.mark.parametrize(
    ("path", "asks", "status", "code"),
    [
        pytest.param(CHAT, {}, 400, "context_length_exceeded", id="rapidmlx-1849-chat-too-long"),
        pytest.param(RAW, {}, 400, "context_length_exceeded", id="rapidmlx-1849-completion-too-long"),
        pytest.param(CHAT, {"temperature": "hot"}, 400, "invalid_type", id="rapidmlx-pr-1897-chat-field"),
        pytest.param(RAW, {"temperature": "hot"}, 400, "invalid_type", id="rapidmlx-pr-1897-completion-field"),
        pytest.param(CHAT, {"model": "another"}, 404, "model_not_found", id="omlx-3036-model"),
    ],
)
def test_what_is_wrong_with_a_stream_before_it_begins_is_an_ordinary_error(server, path, asks, status, code):
    text = "x" * 600 if code == "context_length_exceeded" else "hi"
    said = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    response = server.post(path, {**said, **asks, "stream": True})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers["content-type"] == "application/json"
