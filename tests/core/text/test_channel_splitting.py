from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ReasoningSyntax
from ninfer_core.text.channels import ChannelSplitter

THINK = ReasoningSyntax(open="<think>", close="</think>")


def run(chunks: list[str], *, in_reasoning: bool = True, syntax: ReasoningSyntax | None = THINK) -> tuple[str, str]:
    splitter = ChannelSplitter(syntax, in_reasoning)
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.finish()
    channels = [channel for channel, _ in pieces]
    assert channels == sorted(channels, reverse=True), "reasoning comes before content"
    assert all(text for _, text in pieces)
    return (
        "".join(text for channel, text in pieces if channel == "reasoning"),
        "".join(text for channel, text in pieces if channel == "content"),
    )


CASES = {
    "why</think>\n\nso": ("why", "so"),
    "why\n</think> so": ("why", "so"),
    "why</think>so": ("why</think>so", ""),
    "a </thin b</think>\nc": ("a </thin b", "c"),
    "never closed </thi": ("never closed </thi", ""),
    "trailing \n\n": ("trailing \n\n", ""),
    "quoted `</think>` here\n</think>\n\nanswer": ("quoted `</think>` here", "answer"),
    "an escaped one</think>\\nand on</think>\nx": ("an escaped one</think>\\nand on", "x"),
    "followed by a point</think>. on</think>\nx": ("followed by a point</think>. on", "x"),
    "</think></think>\nx": ("</think>", "x"),
    "thought\n</think>": ("thought", ""),
    "thought</think>\n\n": ("thought", ""),
    "</think>\n\nanswer": ("", "answer"),
    "a\n</think>\t answer\n\n</think>\nrest\n": ("a", "answer\n\n</think>\nrest\n"),
    "</thin</think>\r\nx": ("</thin", "x"),
    "non-breaking</think>\u00a0x": ("non-breaking</think>\u00a0x", ""),
    "": ("", ""),
}


@pytest.mark.contract("chat.markers.reasoning")
@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=[repr(text) for text in CASES])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_cut_of_the_stream_never_shows(text, expected, size):
    assert run([text[i : i + size] for i in range(0, len(text), size)]) == expected


OPENING = {
    "<think>\nwhy\n</think>\n\nso": ("why", "so"),
    "\n <think>why</think>\nso": ("why", "so"),
    "so <think>": ("", "so <think>"),
    "\n\nso": ("", "\n\nso"),
    "<thinking>": ("", "<thinking>"),
    "  <thi": ("", "  <thi"),
    "<think>\n\n</think>\n\nso": ("", "so"),
}


@pytest.mark.parametrize(("text", "expected"), OPENING.items(), ids=[repr(text) for text in OPENING])
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_a_turn_may_open_its_own_reasoning_as_the_first_thing(text, expected, size):
    assert run([text[i : i + size] for i in range(0, len(text), size)], in_reasoning=False) == expected


alphabet = st.sampled_from(["<think>", "</think>", "</", "think>", "\n", " ", "a", "b"])


@given(st.lists(alphabet, max_size=12), st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_any_cut_of_any_markup_splits_alike(parts, places, in_reasoning):
    text = "".join(parts)
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    cut = [text[a:b] for a, b in pairwise(bounds)]
    assert run(cut, in_reasoning=in_reasoning) == run(list(text), in_reasoning=in_reasoning)


@given(st.lists(alphabet, max_size=12))
def test_only_tags_and_the_white_space_around_them_disappear(parts):
    text = "".join(parts)
    reasoning, content = run([text])
    assert text.startswith(reasoning)
    assert text.endswith(content)
    between = text[len(reasoning) : len(text) - len(content)]
    assert between.strip(" \t\r\n") in ("", "</think>")


def test_without_reasoning_syntax_everything_is_content():
    assert run(["<think>a</think>\nb"], syntax=None, in_reasoning=False) == ("", "<think>a</think>\nb")


@pytest.mark.contract("chat.markers.reasoning")
def test_reasoning_lasts_until_the_close_is_certain():
    splitter = ChannelSplitter(THINK, True)
    splitter.feed("why</think>")
    assert splitter.in_reasoning
    splitter.feed("\n")
    assert not splitter.in_reasoning
