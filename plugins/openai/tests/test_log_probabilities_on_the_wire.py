"""Records of tokens: what one looks like, which chunk it rides on, and what is sent when nobody asked."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ninfer_core.api import ChatJob, Delta, Done, Timings, TokenLogprob
from ninfer_core.testing import FakeEngine
from ninfer_core.testing.fakes import FakeGeneration
from ninfer_openai.answers import Head
from ninfer_openai.chat import Calls, Rendering, chunks, completion
from ninfer_openai.logprobs import OUTSIDE, choice_logprobs

SPELLED = {1: b"Hi", 2: b"\xf0\x9f", 3: b"\x98\x80!", 4: b"<|image_pad|>", 5: b""}
HEAD = Head(id="c", created=0, model="m")
ASKED = Rendering(head=HEAD, calls=Calls(answer_id="c"), token_bytes=SPELLED.__getitem__)
SILENT = replace(ASKED, token_bytes=None)


def one(token: int, logprob: float = -0.5, **more: Any) -> TokenLogprob:
    return TokenLogprob(token_id=token, logprob=logprob, **more)


def delta(text: str, *records: TokenLogprob) -> Delta:
    return Delta(channel="content", text=text, token_ids=(), timings=Timings(), logprobs=records)


def choices(*events: Any, rendering: Rendering = ASKED) -> list[dict[str, Any]]:
    generation = FakeGeneration(FakeEngine(), ChatJob(messages=()))
    generation._events = iter(events)

    async def collect() -> list[bytes]:
        return [chunk async for chunk in chunks(generation, rendering)]

    *made, _end = asyncio.run(collect())
    return [msgspec.json.decode(chunk.removeprefix(b"data: "))["choices"][0] for chunk in made]


def done(*late: TokenLogprob) -> Done:
    return Done(result=FakeEngine().result(), logprobs=late)


@pytest.mark.contract("logprobs.record")
def test_a_record_has_exact_bytes_and_replacement_characters_where_they_are_no_text():
    made = choice_logprobs([one(1, top=((1, -0.5), (3, -1.5))), one(2), one(5)], SPELLED.__getitem__)
    assert made == {
        "content": [
            {
                "token": "Hi",
                "logprob": -0.5,
                "bytes": [72, 105],
                "top_logprobs": [
                    {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
                    {"token": "\ufffd\ufffd!", "logprob": -1.5, "bytes": [0x98, 0x80, 33]},
                ],
            },
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xF0, 0x9F], "top_logprobs": []},
            {"token": "", "logprob": -0.5, "bytes": [], "top_logprobs": []},
        ],
        "refusal": None,
    }


@pytest.mark.contract("logprobs.outlier")
@pytest.mark.parametrize("value", [-math.inf, math.nan, OUTSIDE], ids=str)
def test_every_number_is_finite(value):
    """sglang 5984, madroidmaq/mlx-omni-server PR 56."""
    made = choice_logprobs([one(1, value, top=((3, value),))], SPELLED.__getitem__)["content"][0]
    assert (made["logprob"], made["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


@pytest.mark.contract("logprobs.travel")
def test_records_ride_on_the_chunk_of_their_text():
    first, second, third, finish = choices(delta("Hi", one(1)), delta("", one(2)), delta("\U0001f600!"), done())
    assert first["delta"] == {"content": "Hi"}
    assert [record["token"] for record in first["logprobs"]["content"]] == ["Hi"]
    assert [record["bytes"] for record in second["logprobs"]["content"]] == [[0xF0, 0x9F]]
    assert (third["logprobs"], finish["logprobs"]) == (None, None)


def test_records_without_text_get_a_chunk_of_their_own_before_the_finish():
    _text, late, finish = choices(delta("Hi", one(1)), done(one(4), one(2)))
    assert (late["delta"], late["finish_reason"]) == ({}, None)
    assert [record["token"] for record in late["logprobs"]["content"]] == ["<|image_pad|>", "\ufffd"]
    assert finish == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


@pytest.mark.contract("logprobs.silent", "logprobs.chat")
def test_nobody_who_did_not_ask_gets_any():
    made = choices(delta("Hi", one(1)), done(one(4)), rendering=SILENT)
    assert [choice["logprobs"] for choice in made] == [None, None]
    result = replace(FakeEngine().result(), logprobs=(one(1),))
    assert completion(result, SILENT)["choices"][0]["logprobs"] is None
    assert completion(replace(result, logprobs=()), ASKED)["choices"][0]["logprobs"] == {"content": [], "refusal": None}
