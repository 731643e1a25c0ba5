from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import ReasoningSyntax
from ninfer_core.errors import InvariantError
from ninfer_core.text.output import OutputSession

THINK = ReasoningSyntax(open="<think>", close="</think>")


class Pieces:
    """A vocabulary made for one test: a token per distinct piece, then the control tokens."""

    def __init__(self, pieces: Sequence[bytes], control: Sequence[str] = ("<end>", "<hidden>", "</think>")) -> None:
        self._bytes = [*dict.fromkeys(pieces), *(word.encode() for word in control)]
        self.size = len(self._bytes)
        self.control_tokens = {word: self._bytes.index(word.encode()) for word in control}
        self.special_ids = frozenset({self.control_tokens[w] for w in control if w != "</think>"})

    def ids(self, *pieces: bytes | str) -> list[int]:
        return [self._bytes.index(p.encode() if isinstance(p, str) else p) for p in pieces]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_with_control = encode

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]


def session(
    tokenizer: Pieces,
    stops: Sequence[str] = (),
    *,
    in_reasoning: bool = True,
    limit: int = 10_000,
    raw: bool = False,
    eos: bool = True,
) -> OutputSession:
    return OutputSession(
        tokenizer,
        stop_ids=frozenset({tokenizer.control_tokens["<end>"]}) if eos else frozenset(),
        stops=tuple(stops),
        reasoning=THINK,
        in_reasoning=in_reasoning,
        limit=limit,
        limit_finish="output_limit",
        raw=raw,
    )


def play(output: OutputSession, rounds: Sequence[Sequence[int]]) -> OutputSession:
    """Commit rounds until the end; the deltas must add up to the texts."""
    texts = {"reasoning": "", "content": ""}
    for tokens in rounds:
        taken = output.preview(tokens)
        output.commit(taken)
        for channel, text in taken.deltas:
            assert text
            texts[channel] += text
        if taken.finish:
            break
    for channel, text in output.flush():
        texts[channel] += text
    assert texts == {"reasoning": output.reasoning, "content": output.content}
    return output


def facts(output: OutputSession) -> tuple[object, ...]:
    return output.finish, output.stop_string, output.reasoning, output.content


def cut(items: Sequence[object], places: Sequence[int]) -> list[Sequence[object]]:
    bounds = [0, *sorted(min(place, len(items)) for place in places), len(items)]
    return [items[a:b] for a, b in pairwise(bounds)]


fragments = st.sampled_from(["</think>", "\n", " ", "stop", "st", "op", "é", "😀", "abc", "`", "<", "</thi", "\n\nQ"])
stop_lists = st.lists(st.sampled_from(["stop", "\n\nQ", "\n", "op\n", "é😀", "<", "top"]), max_size=3)
places = st.lists(st.integers(0, 80), max_size=12)


@given(st.lists(fragments, max_size=14), stop_lists, places, places, st.booleans())
@settings(max_examples=300)
def test_any_split_into_tokens_and_rounds_gives_the_same_answer(parts, stops, token_cut, round_cut, in_reasoning):
    data = "".join(parts).encode()
    bytewise = [data[i : i + 1] for i in range(len(data))]
    split = [bytes(piece) for piece in cut(data, token_cut) if piece]
    results = []
    for pieces, spread in ((bytewise, range(len(bytewise))), (split, round_cut), ([data] if data else [], [])):
        tokenizer = Pieces(pieces)
        ids = [*tokenizer.ids(*pieces), *tokenizer.ids("<end>")]
        results.append(facts(play(session(tokenizer, stops, in_reasoning=in_reasoning), cut(ids, list(spread)))))
    assert results[0] == results[1] == results[2]


@given(st.lists(fragments, min_size=1, max_size=10), stop_lists, places, st.integers(1, 12))
def test_rounds_never_change_what_is_kept_at_a_limit(parts, stops, round_cut, limit):
    pieces = [part.encode() for part in parts]
    tokenizer = Pieces(pieces)
    ids = tokenizer.ids(*pieces)
    one_by_one = play(session(tokenizer, stops, limit=limit), [[token] for token in ids])
    in_rounds = play(session(tokenizer, stops, limit=limit), cut(ids, round_cut))
    for output in (one_by_one, in_rounds):
        assert len(output.token_ids) <= limit
    assert facts(one_by_one) == facts(in_rounds)
    assert one_by_one.token_ids == in_rounds.token_ids == ids[: len(in_rounds.token_ids)]
    assert one_by_one.reasoning_tokens == in_rounds.reasoning_tokens


@given(st.lists(fragments, max_size=6), st.lists(fragments, max_size=6), st.lists(fragments, max_size=6), stop_lists)
def test_a_preview_changes_nothing(before, other, after, stops):
    pieces = [part.encode() for part in (*before, *other, *after)]
    tokenizer = Pieces(pieces)

    def tokens(parts):
        return tokenizer.ids(*parts)

    plain, curious = session(tokenizer, stops), session(tokenizer, stops)
    for output in (plain, curious):
        output.commit(output.preview(tokens(before)))
    if plain.finish is None:
        was = (curious.reasoning, curious.content, list(curious.token_ids), curious.remaining, curious.in_reasoning)
        assert curious.preview(tokens(other)).deltas == curious.preview(tokens(other)).deltas
        assert was == (
            curious.reasoning,
            curious.content,
            list(curious.token_ids),
            curious.remaining,
            curious.in_reasoning,
        )
        for output in (plain, curious):
            output.commit(output.preview(tokens(after)))
    assert (facts(plain), plain.flush()) == (facts(curious), curious.flush())


def test_a_round_that_ends_inside_keeps_the_token_that_ends():
    tokenizer = Pieces([b"ab", b"cd", b"ef"])
    taken = session(tokenizer, ["c"], in_reasoning=False).preview(tokenizer.ids("ab", "cd", "ef"))
    assert (taken.kept, taken.finish, taken.stop_string, taken.deltas) == (2, "stop_string", "c", (("content", "ab"),))


def test_a_stop_token_is_kept_and_counted_but_has_no_text():
    tokenizer = Pieces([b"hi", b"x"])
    output = play(session(tokenizer, in_reasoning=False), [tokenizer.ids("hi", "<end>", "x")])
    assert facts(output) == ("stop_token", None, "", "hi")
    assert output.token_ids == tokenizer.ids("hi", "<end>")


def test_ignoring_the_stop_token_still_withholds_its_text():
    tokenizer = Pieces([b"hi", b"x"])
    output = play(session(tokenizer, in_reasoning=False, eos=False, limit=3), [tokenizer.ids("hi", "<end>", "x")])
    assert facts(output) == ("output_limit", None, "", "hix")


def test_end_of_the_thought_the_close_and_the_answer_may_share_a_round():
    tokenizer = Pieces([b"because", b"\n", b"\n\nHello", b" Question:"])
    ids = tokenizer.ids("because", "\n", "</think>", "\n\nHello", " Question:", "\n")
    output = session(tokenizer, ["Question:"])
    taken = output.preview(ids)
    assert taken.deltas == (("reasoning", "because"), ("content", "Hello "))
    assert (taken.kept, taken.finish, taken.stop_string) == (5, "stop_string", "Question:")


def test_a_stop_inside_the_reasoning_ends_the_turn_with_an_empty_answer():
    tokenizer = Pieces([b"I ask: Question: what</think>\nso"])
    output = play(session(tokenizer, ["Question:"]), [[0]])
    assert facts(output) == ("stop_string", "Question:", "I ask: ", "")


def test_a_stop_string_never_spans_the_channels_nor_the_white_space_between_them():
    tokenizer = Pieces([b"stop", b"\n", b"\n\n", b"here"])
    ids = tokenizer.ids("stop", "\n", "</think>", "\n\n", "here", "<end>")
    output = play(session(tokenizer, ["stophere", "\n\n", "\n", "stop\n"]), [ids])
    assert facts(output) == ("stop_token", None, "stop", "here")


def test_white_space_of_the_thought_completes_a_stop_once_the_thought_goes_on():
    tokenizer = Pieces([b"one", b"\n\n", b"two"])
    output = play(session(tokenizer, ["\n\n"]), [tokenizer.ids("one", "\n\n", "two")])
    assert facts(output) == ("stop_string", "\n\n", "one", "")


def test_held_text_can_complete_a_stop_at_the_end():
    tokenizer = Pieces([b"one", b" <"])
    output = play(session(tokenizer, ["<"]), [tokenizer.ids("one", " <", "<end>")])
    assert facts(output) == ("stop_string", "<", "one ", "")


@pytest.mark.parametrize("end", ["<end>", None], ids=["stop-token", "limit"])
def test_held_text_is_published_at_the_end(end):
    tokenizer = Pieces([b"answer\n", b"\xc3"])
    ids = tokenizer.ids(b"answer\n", b"\xc3", *([end] if end else []))
    output = play(session(tokenizer, ["\n\nQ"], in_reasoning=False, limit=2 + bool(end)), [ids])
    assert output.content == "answer\n�"


def test_an_unfinished_thought_at_the_limit_is_all_reasoning():
    tokenizer = Pieces([b"still thinking", b" \n"])
    output = play(session(tokenizer, limit=2), [tokenizer.ids("still thinking", " \n")])
    assert facts(output) == ("output_limit", None, "still thinking \n", "")


def test_flush_gives_a_cancelled_request_its_held_text_once():
    tokenizer = Pieces([b"a", b" "])
    output = session(tokenizer)
    output.commit(output.preview(tokenizer.ids("a", " ")))
    assert output.reasoning == "a"
    assert output.flush() == (("reasoning", " "),)
    assert output.flush() == ()
    assert (output.reasoning, output.finish) == ("a ", "cancelled")


def test_reasoning_tokens_count_the_close_and_the_white_space_that_confirms_it():
    tokenizer = Pieces([b"why", b"\n\n", b"so"])
    output = play(session(tokenizer), [tokenizer.ids("why", "</think>", "\n\n", "so", "<end>")])
    assert (output.reasoning_tokens, len(output.token_ids)) == (3, 5)


def test_raw_output_keeps_tags_and_drops_special_tokens():
    tokenizer = Pieces([b"<think>", b"why", b"\n\nso"])
    ids = tokenizer.ids("<think>", "why", "</think>", "<hidden>", "\n\nso", "<end>")
    output = play(session(tokenizer, in_reasoning=False, raw=True), [ids])
    assert facts(output) == ("stop_token", None, "", "<think>why</think>\n\nso")


def test_a_close_tag_that_is_a_special_token_still_closes():
    tokenizer = Pieces([b"why", b"\nso"], control=("<end>", "<hidden>", "</think>"))
    tokenizer.special_ids = frozenset(tokenizer.control_tokens.values())
    output = play(session(tokenizer), [tokenizer.ids("why", "</think>", "\nso", "<end>")])
    assert facts(output) == ("stop_token", None, "why", "so")


def test_a_character_split_over_tokens_arrives_whole():
    tokenizer = Pieces([b"\xf0", b"\x9f\x98", b"\x80!"])
    output = session(tokenizer, in_reasoning=False)
    seen = []
    for token in tokenizer.ids(b"\xf0", b"\x9f\x98", b"\x80!"):
        taken = output.preview([token])
        output.commit(taken)
        seen.append(taken.deltas)
    assert seen == [(), (), (("content", "😀!"),)]


def test_previews_are_committed_in_order_and_not_after_the_end():
    tokenizer = Pieces([b"a"])
    output = session(tokenizer, limit=2)
    first, second = output.preview([0]), output.preview([0])
    output.commit(first)
    with pytest.raises(InvariantError):
        output.commit(second)
    output.commit(output.preview([0, 0]))
    assert (output.finish, output.remaining) == ("output_limit", 0)
    with pytest.raises(InvariantError):
        output.preview([0])


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_an_answer_that_begins_inside_a_character_marks_its_first_token(cut):
    # U+1F600 in two tokens, right behind the close tag and its white space
    tokenizer = Pieces([b"</think>\n\n", b"\xf0\x9f", b"\x98\x80", b"why"])
    tokens = tokenizer.ids(b"why", b"</think>\n\n", b"\xf0\x9f", b"\x98\x80")
    reading = session(tokenizer)
    marks: list[int | None] = []
    for start in range(0, len(tokens), cut):
        taken = reading.preview(tokens[start : start + cut])
        reading.commit(taken)
        marks += taken.marks
    assert reading.content == "\U0001f600"
    assert marks == [None, None, 0, 0]
