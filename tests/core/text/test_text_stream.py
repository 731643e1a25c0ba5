from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.detokenize import TextStream, decode


def stream(chunks: list[bytes]) -> list[str]:
    text = TextStream()
    return [*(text.feed(chunk) for chunk in chunks), text.finish()]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_any_cut_of_any_bytes_gives_the_text_of_the_whole(data, places):
    assert "".join(stream(cut(data, places))) == decode(data)


@given(st.text(max_size=20))
def test_valid_text_never_shows_a_replacement_character_byte_by_byte(text):
    data = text.encode("utf-8", "replace")
    assert "".join(stream([data[i : i + 1] for i in range(len(data))])) == data.decode()


def test_a_character_is_published_with_its_last_byte():
    assert stream([b"\xf0\x9f", b"\x98", b"\x80 ", b"\xc3"]) == ["", "", "😀 ", "", "�"]


def test_a_sequence_that_cannot_complete_is_replaced_at_once():
    assert stream([b"\xf0\x9fA", b"B"]) == ["�A", "B", ""]


def test_a_copy_goes_its_own_way():
    first = TextStream()
    first.feed(b"\xc3")
    second = first.copy()
    assert (first.feed(b"\xa9"), second.feed(b"\xa8")) == ("é", "è")
