from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.stops import StopMatcher


def run(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = ""
    for chunk in chunks:
        text, hit = matcher.feed(chunk)
        out += text
        if hit is not None:
            return out, hit
    return out + matcher.finish(), None


def by_definition(stops: list[str], text: str) -> tuple[str, str | None]:
    """The stop that ends first; of those that end together, the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


words = st.text(alphabet="ab", min_size=1, max_size=4)


@given(st.lists(words, max_size=4), st.text(alphabet="abc", max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_every_cut_gives_what_the_definition_gives(stops, text, places):
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    chunks = [text[a:b] for a, b in pairwise(bounds)]
    assert run(stops, chunks) == by_definition(stops, text)


@given(st.lists(words, min_size=1, max_size=4), st.text(alphabet="abc", max_size=20))
def test_what_is_held_is_a_beginning_of_a_stop_and_no_longer_than_needed(stops, text):
    matcher = StopMatcher(stops)
    out, hit = matcher.feed(text)
    if hit is None:
        held = matcher.finish()
        assert out + held == text
        ends = [text[len(text) - n :] for n in range(len(text) + 1)]
        assert held == max((e for e in ends if any(s.startswith(e) and s != e for s in stops)), key=len)


def test_of_stops_that_end_together_the_longest_is_reported():
    assert run(["b", "ab"], ["xab"]) == ("x", "ab")


def test_the_stop_that_ends_first_wins_over_one_that_began_before_it():
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")


def test_text_held_for_a_stop_is_not_lost_at_the_end():
    assert run(["\n\nQ"], ["answer\n"]) == ("answer\n", None)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])


def test_a_long_repetitive_stop_costs_one_step_per_character():
    stop = "a" * 20_000 + "b"
    assert run([stop], ["a" * 50_000, "b", "c"]) == ("a" * 30_000, stop)
