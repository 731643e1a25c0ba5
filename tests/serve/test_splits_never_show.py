"""A stream's text is the aggregate's, however the engine cuts it."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ninfer_core.testing import FakeEngine

TURN = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
THOUGHT, ANSWER = "Hm é", 'a"🌍\nb'


def cuts(text: str):
    """Every way to cut a text into pieces."""
    for marks in itertools.product((False, True), repeat=len(text) - 1):
        piece, out = text[0], []
        for character, cut in zip(text[1:], marks, strict=True):
            if cut:
                out.append(piece)
                piece = ""
            piece += character
        yield [*out, piece]


def data(text: str) -> list[str]:
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


@pytest.mark.parametrize("thought", list(cuts(THOUGHT)), ids=len)
def test_chat_deltas_add_up_to_the_aggregate(serve, thought):
    for answer in cuts(ANSWER):
        pieces = [*(("reasoning", piece) for piece in thought), *answer]
        response = serve(FakeEngine(pieces=pieces)).get("POST", "/v1/chat/completions", TURN)
        *events, end = data(response.text)
        assert end == "[DONE]"
        choices = [msgspec.json.decode(event)["choices"][0] for event in events]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        deltas = [choice["delta"] for choice in choices[1:]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
        assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_completion_chunks_add_up_to_the_aggregate(serve):
    whole = serve(FakeEngine(pieces=[ANSWER])).get("POST", "/completion", {"prompt": "hi"}).json()
    for answer in cuts(ANSWER):
        site = serve(FakeEngine(pieces=answer))
        *chunks, last = map(msgspec.json.decode, data(site.get("POST", "/completion", {**RAW}).text))
        assert "".join(chunk["content"] for chunk in chunks) == whole["content"] == ANSWER
        assert [chunk["stop"] for chunk in chunks] == [False] * len(answer)
        differing = {"content", "generation_settings"}
        assert {k: v for k, v in last.items() if k not in differing} == {
            k: v for k, v in whole.items() if k not in differing
        }
        assert last["content"] == ""


RAW = {"prompt": "hi", "stream": True}
