"""What a client reads when its body cannot be used: place, value, what would be accepted; never a library's text."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import pytest

from ninfer_core.api.http import decode, decode_now
from ninfer_core.errors import ApiError


class Turn(msgspec.Struct):
    role: str
    content: str | list[int] | None = None


class Body(msgspec.Struct):
    turns: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    heat: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    count: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    flag: bool = False
    table: dict[str, float] | None = None
    stops: Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(max_length=2)] | None = None


DECODER = msgspec.json.Decoder(Body)
GOOD = b'"turns":[{"role":"user"}]'


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asyncio.run(decode(body, DECODER))
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request body is empty; it must be a JSON object."),
        (b" \n", "The request body is empty; it must be a JSON object."),
        (b"hello", "The request body is not valid JSON at byte 0."),
        (b"{" + GOOD + b"} x", "The request body is not valid JSON at byte 29."),
        (b'{"heat":NaN}', "The request body is not valid JSON at byte 8."),
        (b'{"turns":[', "The request body is not valid JSON: it ends early."),
        (
            b'{"turns":[{"role":"\\ud800"}]}',
            "The request body is not valid JSON at byte 19: half a surrogate pair is not text.",
        ),
        (b'{"skipped":"\xff",' + GOOD + b"}", "The request body is not valid UTF-8."),
        (b"\xef\xbb\xbf{}", "The request body is not valid JSON at byte 0."),
        (b'{"turns":[{"role":"\xff"}]}', "The request body is not valid UTF-8."),
        (b'{"x":' + b"[" * 100_000, "The request body is nested too deeply."),
    ],
)
def test_what_is_not_json(body, message):
    error = refused(body)
    assert (error.code, error.message, error.param) == ("invalid_json", message, None)


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"[]", "invalid_type", None, "The request body must be an object."),
        (b"null", "invalid_type", None, "The request body must be an object."),
        (b"{}", "missing_required_parameter", "turns", "'turns' is required."),
        (b'{"turns":[{}]}', "missing_required_parameter", "turns[0].role", "'turns[0].role' is required."),
        (b'{"turns":7}', "invalid_type", "turns", "'turns' must be an array, but is 7."),
        (b'{"turns":[]}', "invalid_value", "turns", "'turns' must be an array that is not empty, but is []."),
        (b'{"turns":["x"]}', "invalid_type", "turns[0]", "'turns[0]' must be an object, but is \"x\"."),
        (
            b'{"turns":[{"role":"u","content":{"a":1}}]}',
            "invalid_type",
            "turns[0].content",
            "'turns[0].content' must be a string or an array, but is {\"a\":1}.",
        ),
        (
            b'{"turns":[{"role":"u","content":[1,2.5]}]}',
            "invalid_type",
            "turns[0].content[1]",
            "'turns[0].content[1]' must be a whole number, but is 2.5.",
        ),
        (b"{" + GOOD + b',"heat":3}', "invalid_value", "heat", "'heat' must be a number of at most 2, but is 3."),
        (
            b"{" + GOOD + b',"heat":-1}',
            "invalid_value",
            "heat",
            "'heat' must be a number that is not negative, but is -1.",
        ),
        (b"{" + GOOD + b',"heat":"hot"}', "invalid_type", "heat", "'heat' must be a number, but is \"hot\"."),
        (b"{" + GOOD + b',"heat":1e999}', "invalid_value", "heat", "'heat' must be a number that fits 64 bits."),
        (
            b"{" + GOOD + b',"count":-2}',
            "invalid_value",
            "count",
            "'count' must be a whole number of at least -1, but is -2.",
        ),
        (b"{" + GOOD + b',"count":true}', "invalid_type", "count", "'count' must be a whole number, but is true."),
        (b"{" + GOOD + b',"flag":null}', "invalid_type", "flag", "'flag' must be true or false, but is null."),
        (b"{" + GOOD + b',"table":{"a":"x"}}', "invalid_type", "table", "Every value of 'table' must be a number."),
        (
            b"{" + GOOD + b',"stops":[""]}',
            "invalid_value",
            "stops[0]",
            "'stops[0]' must be a string that is not empty, but is \"\".",
        ),
        (
            b"{" + GOOD + b',"stops":["a","b","c"]}',
            "invalid_value",
            "stops",
            '\'stops\' must be an array of at most 2 members, but is ["a","b","c"].',
        ),
    ],
)
def test_what_is_json_of_the_wrong_shape(body, code, param, message):
    error = refused(body)
    assert (error.code, error.param, error.message) == (code, param, message)


@pytest.mark.parametrize("size", [0, 300_000], ids=["small", "on-a-thread"])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{" + GOOD + b',"heat":1,"heat":1}', "duplicate_member", "heat"),
        (b'{"turns":[{"role":"a"},{"role":"a","role":"b"}]}', "duplicate_member", "turns[1].role"),
        (b"{" + GOOD + b',"skipped":{"a":{"b":1,"b":2}}}', "duplicate_member", "skipped.a.b"),
        (b"{" + GOOD + b',"skipped":1e999}', "invalid_value", "skipped"),
        (b"{" + GOOD + b',"skipped":[' + b"9" * 5000 + b"]}", "invalid_value", "skipped[0]"),
    ],
    ids=["top-level", "in-a-message", "where-nobody-reads", "infinite-number", "5000-digits"],
)
def test_what_the_decoder_does_not_see_is_refused_too(body, code, param, size):
    error = refused(b" " * size + body)
    assert (error.code, error.param) == (code, param)


def test_a_part_of_a_body_is_named_by_its_place():
    with pytest.raises(ApiError) as caught:
        decode_now(b'{"role":7}', msgspec.json.Decoder(Turn), place="turns[3]")
    assert (caught.value.param, caught.value.message) == (
        "turns[3].role",
        "'turns[3].role' must be a string, but is 7.",
    )
    with pytest.raises(ApiError) as caught:
        decode_now(b'{"role":', msgspec.json.Decoder(Turn), place="turns[3]")
    assert (caught.value.code, caught.value.param) == ("invalid_json", "turns[3]")


def test_a_long_value_is_cut_and_a_huge_body_is_not_quoted():
    long = msgspec.json.encode({"turns": "x" * 500})
    assert len(refused(long).message) < 150
    huge = msgspec.json.encode({"turns": "x" * (2 << 20)})
    assert refused(huge).message == "'turns' must be an array."


def test_a_large_body_is_decoded_like_a_small_one():
    body: Any = asyncio.run(decode(msgspec.json.encode({"turns": [{"role": "x" * (5 << 20)}]}), DECODER))
    assert len(body.turns[0].role) == 5 << 20
    assert refused(b'{"turns":[' + b" " * (5 << 20) + b"7]}").param == "turns[0]"


def test_a_body_of_too_many_objects_is_refused_whatever_its_size():
    turns = b",".join([b'{"role":"user"}'] * 50_001)
    assert refused(b'{"turns":[' + turns + b"]}").code == "request_too_complex"
    assert refused(b'{"turns":[{"role":"user"}],"unread":[' + b"[]," * 50_000 + b"[]]}").code == "request_too_complex"
    text = b'{"turns":[{"role":"user","content":"' + b"{[" * 60_000 + b'"}]}'
    assert len(asyncio.run(decode(text, DECODER)).turns) == 1
