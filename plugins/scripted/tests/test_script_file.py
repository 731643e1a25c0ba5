"""What a script may hold, and how a bad one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer_core.api import ArtifactError
from ninfer_scripted import ARCHITECTURE, FAMILY
from ninfer_scripted.script import Script, open_source, parse

A = {"match": "a", "text": "x"}


def read(content: object) -> Script:
    return parse(content if isinstance(content, bytes) else json.dumps(content).encode(), "f.json")


REFUSED = [
    ({"nmae": "x"}, "unknown key 'nmae' at $; known: name, replies, default, delay_ms, prefill_delay_ms, draft"),
    ({"replies": [A, {**A, "txt": "y"}]}, "unknown key 'txt' at $.replies[1]; known: text, by_turn"),
    ({"default": {"match": "a", "text": "x"}}, "unknown key 'match' at $.default; known: text"),
    ({"default": {"text": "x", "fail_at": 1}}, "unknown key 'fail_at' at $.default"),
    ([], "Expected `object`, got `array`"),
    ({"name": ""}, "length >= 1 - at `$.name`"),
    ({"name": None}, "$.name"),
    ({"replies": {}}, "$.replies"),
    ({"replies": [{"text": "x"}]}, "missing required field `match` - at `$.replies[0]`"),
    ({"replies": [{"match": "", "text": "x"}]}, "$.replies[0].match"),
    ({"replies": [{"match": "a"}]}, "one of text, by_turn, pieces, pieces_bytes is needed, none given at $.replies[0]"),
    ({"replies": [{**A, "pieces": ["y"]}]}, "is needed, text and pieces given at $.replies[0]"),
    ({"replies": [{"match": "a", "by_turn": []}]}, "$.replies[0].by_turn"),
    ({"replies": [{"match": "a", "pieces": []}]}, "$.replies[0].pieces"),
    ({"replies": [{"match": "a", "pieces": ["b", ""]}]}, "$.replies[0].pieces[1]"),
    ({"replies": [{"match": "a", "pieces_bytes": [[256]]}]}, "$.replies[0].pieces_bytes[0][0]"),
    ({"replies": [{"match": "a", "pieces_bytes": [[]]}]}, "$.replies[0].pieces_bytes[0]"),
    ({"replies": [{**A, "finish": "length"}]}, "$.replies[0].finish"),
    ({"replies": [{"match": "a", "text": "", "finish": "never"}]}, 'at $.replies[0]: finish "never"'),
    ({"replies": [{**A, "delay_ms": -1}]}, "$.replies[0].delay_ms"),
    ({"replies": [{**A, "delay_ms": "5"}]}, "$.replies[0].delay_ms"),
    ({"prefill_delay_ms": 1e9}, "$.prefill_delay_ms"),
    ({"replies": [{**A, "fail_at": -1}]}, "$.replies[0].fail_at"),
    ({"replies": [{**A, "nan_at": 2}]}, "at $.replies[0]: nan_at 2 is beyond the stop token, which is token 1"),
    ({"replies": [{**A, "draft": [63]}]}, "$.replies[0].draft[0]"),
    ({"replies": [{**A, "draft": []}]}, "$.replies[0].draft"),
    ({"replies": [{**A, "logits": {"xy": 1}}]}, "logits names 'xy', which is not one token"),
    ({"replies": [{**A, "logits": {"x": "1"}}]}, "$.replies[0].logits"),
    (b'{"name": "a"', "not JSON"),
    (b'{"name": "\\ud83d"}', "not JSON"),
    (b'{"delay_ms": NaN}', "not JSON"),
    (b'{"name": "\xff"}', "not JSON"),
    (b"[" * 100_000, "Expected `object`"),
]


@pytest.mark.parametrize(("content", "text"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_script_is_refused_in_one_line_that_names_the_place(content: object, text: str) -> None:
    with pytest.raises(ArtifactError) as refusal:
        read(content)
    assert text in str(refusal.value)
    assert str(refusal.value).startswith("f.json: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["missing.json", "nul\0byte", "x" * 5000, ""])
def test_an_unreadable_file_is_refused_by_name(name: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_source(f"scripted:{name}")


def test_an_empty_object_is_a_script_with_the_default_reply() -> None:
    script = read({})
    assert script.name == "scripted"
    assert script.default.turns == (tuple(b"OK."),)
    assert script.default.stops


def test_a_source_carries_the_file_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"name": "demo"}')
    source = open_source(f"scripted:{tmp_path / 's.json'}")
    assert (source.kind, source.architecture, source.name) == ("scripted", ARCHITECTURE, "demo")
    assert source.resources == {"script.json": b'{"name": "demo"}'}
    assert FAMILY.adapt(source).parameters == {}


def test_text_is_bytes_and_control_tokens() -> None:
    script = read({"default": {"text": "é<think>x</think><|im_end|>"}})
    control = script.tokenizer.control_tokens
    expected = (0xC3, 0xA9, control["<think>"], ord("x"), control["</think>"], control["<|im_end|>"])
    assert script.default.turns == (expected,)


def test_each_distinct_piece_is_one_token_and_control_tokens_in_it_stay_themselves() -> None:
    script = read(
        {
            "replies": [{"match": "a", "pieces": ["Hel", "lo", "Hel", "x", "why</think>so"]}],
            "default": {"pieces_bytes": [[240, 159], [152, 128], [72, 101, 108]]},
        }
    )
    tokenizer, turn = script.tokenizer, script.replies[0].turns[0]
    hel, lo = tokenizer.pieces[b"Hel"], tokenizer.pieces[b"lo"]
    why, so, close = tokenizer.pieces[b"why"], tokenizer.pieces[b"so"], tokenizer.control_tokens["</think>"]
    assert turn == (hel, lo, hel, ord("x"), why, close, so)
    assert script.default.turns[0][-1] == hel
    assert tokenizer.spell(script.default.turns[0]) == "\U0001f600Hel".encode()
    assert tokenizer.size == max(tokenizer.pieces.values()) + 1 == len({*tokenizer.pieces.values()}) + 270


def test_plain_encoding_keeps_control_spellings_as_text() -> None:
    tokenizer = read({}).tokenizer
    assert tokenizer.encode("<think>") == list(b"<think>")
    assert tokenizer.encode_with_control("a<think>b") == [ord("a"), tokenizer.control_tokens["<think>"], ord("b")]


def test_delays_and_drafts_of_the_file_hold_for_replies_without_their_own() -> None:
    script = read({"delay_ms": 5, "draft": [2], "replies": [A, {**A, "delay_ms": 0, "draft": [1, 4]}]})
    assert [reply.delay_seconds for reply in script.replies] == [0.005, 0.0]
    assert [reply.draft for reply in script.replies] == [(2,), (1, 4)]
    assert script.default.draft == (2,)
