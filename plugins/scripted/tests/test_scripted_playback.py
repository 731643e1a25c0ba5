"""Which reply is played, and from where."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from ninfer_scripted.playback import Cursor, resume, start
from ninfer_scripted.script import Script, parse

OFF = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
ON = "<|im_start|>assistant\n<think>\n"


def script(*replies: dict[str, object], **rest: object) -> Script:
    return parse(json.dumps({"replies": replies, **rest}).encode(), "f.json")


def ids(one: Script, text: str) -> list[int]:
    return one.tokenizer.encode_with_control(text)


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def played(one: Script, cursor: Cursor, limit: int = 200) -> str:
    out: list[int] = []
    while len(out) < limit and cursor.token != one.tokenizer.control_tokens["<|im_end|>"]:
        out.append(cursor.token)
        cursor = cursor.follow(cursor.token)
    return one.tokenizer.spell(out).decode()


def answer(one: Script, prompt: str) -> str:
    return played(one, start(one, ids(one, prompt)))


WEATHER = script({"match": "weather", "text": "sun"}, {"match": "w", "text": "second"})


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (user("the weather?") + OFF, "sun"),
        (user("w") + OFF, "second"),
        (user("hello") + OFF, "OK."),
        (user("weather") + "<|im_start|>assistant\nsun<|im_end|>\n" + user("hello") + OFF, "OK."),
        ("<|im_start|>system\nweather<|im_end|>\n" + user("hello") + OFF, "OK."),
        (user("hello\n<|im_start|>user\nweather") + OFF, "sun"),
        (user("weather") + user("\n<tool_response>\nnone\n</tool_response>") + OFF, "OK."),
        (
            user("x")
            + user("\n<tool_response>\nweather\n</tool_response>\n<tool_response>\ny\n</tool_response>")
            + OFF,
            "sun",
        ),
        ("how is the weather", "sun"),
        ("hello", "OK."),
        ("", "OK."),
    ],
)
def test_the_first_reply_that_matches_the_last_user_turn_is_played(prompt: str, expected: str) -> None:
    assert answer(WEATHER, prompt) == expected


def test_the_wrapper_of_tool_results_does_not_match() -> None:
    one = script({"match": "tool_response", "text": "wrapper"})
    assert answer(one, user("\n<tool_response>\nhi\n</tool_response>") + OFF) == "OK."
    assert answer(one, user("what is a tool_response?") + OFF) == "wrapper"


def test_by_turn_counts_closed_assistant_turns_and_repeats_the_last() -> None:
    one = script({"match": "n", "by_turn": ["one", "two"]})
    turn = "<|im_start|>assistant\nx<|im_end|>\n"
    assert [answer(one, user("a") + turn * count + user("n") + OFF) for count in range(4)] == [
        "one",
        "two",
        "two",
        "two",
    ]


OPENED = [
    ("<tool_call>\n<function=f>\n", "<tool_call>\n<function=f>\nrest", "rest"),
    ("<tool_call>\n<function=f>\n", "<tool_call>\n<function=g>\n", "<tool_call>\n<function=g>\n"),
    ("<tool_call>\n<function=f>\n", "plain", "plain"),
]


@pytest.mark.parametrize(("opener", "text", "expected"), OPENED)
def test_an_opener_in_the_prompt_is_skipped(opener: str, text: str, expected: str) -> None:
    assert answer(script({"match": "a", "text": text}), user("a") + OFF + opener) == expected


def test_an_answer_to_continue_is_skipped_even_inside_a_piece() -> None:
    one = script({"match": "a", "pieces": ["Hello", " world"]}, {"match": "b", "text": "OK, then"})
    assert answer(one, user("a") + "<|im_start|>assistant\nHel") == "lo world"
    assert answer(one, user("b") + "<|im_start|>assistant\nOK, ") == "then"
    assert answer(one, user("b") + "<|im_start|>assistant\nO, ") == "OK, then"
    assert answer(one, user("b") + "<|im_start|>assistant\nOK, then") == ""


def test_a_reply_that_spells_the_think_block_skips_it() -> None:
    one = script({"match": "a", "text": "<think>\nhm\n</think>\n\nyes"})
    assert answer(one, user("a") + ON) == "hm\n</think>\n\nyes"


def test_never_repeats_the_last_token() -> None:
    one = script({"match": "a", "text": "la!", "finish": "never"})
    assert played(one, start(one, ids(one, user("a") + OFF)), limit=6) == "la!!!!"
    assert played(one, start(one, ids(one, user("a") + "<|im_start|>assistant\nla!")), limit=2) == "!!"


def follow(one: Script, cursor: Cursor, text: str) -> Cursor:
    for token in ids(one, text):
        cursor = cursor.follow(token)
    return cursor


def test_another_token_takes_the_place_of_the_scripted_one() -> None:
    one = script({"match": "a", "text": "abc"})
    cursor = follow(one, start(one, ids(one, user("a") + OFF)), "aX")
    assert played(one, cursor) == "c"
    assert cursor.produced == 2


@pytest.mark.parametrize("guidance", ["", "\n\n Time is up. abcdefghijklmnopqrstuvwxyz\n"])
@pytest.mark.parametrize("close", ["</think>\n\n", "</think>", "</think>\n"])
def test_a_thought_closed_early_leads_to_the_answer(guidance: str, close: str) -> None:
    one = script({"match": "a", "text": "long thought</think>\n\nanswer"}, {"match": "b", "text": "x</think> y"})
    cursor = follow(one, start(one, ids(one, user("a") + ON)), "lo" + guidance + close)
    assert played(one, cursor).strip() == "answer"
    cursor = follow(one, start(one, ids(one, user("b") + ON)), guidance + close)
    assert played(one, cursor).strip() == "y"


def test_a_thought_that_is_all_there_is_ends_when_closed_early() -> None:
    one = script({"match": "a", "text": "only a thought"})
    assert played(one, follow(one, start(one, ids(one, user("a") + ON)), "on</think>\n\n")) == ""


@pytest.mark.parametrize("prompt", [user("a") + OFF, user("a") + ON, "a raw prompt "])
def test_without_the_prompts_length_the_place_is_found_from_the_text(prompt: str) -> None:
    one = script({"match": "a", "text": "one two three"})
    tokens: Sequence[int] = ids(one, prompt) + list(b"one t")
    assert played(one, resume(one, tokens, None)) == "wo three"
    assert played(one, resume(one, tokens, len(ids(one, prompt)))) == "wo three"


def test_a_raw_prompt_that_ends_like_the_reply_begins_is_still_answered_whole() -> None:
    one = script({"match": "say", "text": "OK now"})
    prompt = ids(one, "say O")
    assert played(one, resume(one, prompt, len(prompt))) == "OK now"
    # output that holds another reply's match does not change the reply
    both = script({"match": "hello", "text": "say hi"}, {"match": "say", "text": "other"})
    prompt = ids(both, "hello")
    assert played(both, resume(both, prompt + list(b"say"), len(prompt))) == " hi"
