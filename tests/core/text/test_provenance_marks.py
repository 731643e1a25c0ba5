import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ApiError, StartupError
from ninfer_core.text.provenance import Marked, Marks, Spellings, free_characters
from ninfer_core.text.template import ChatTemplate

MARK = "\ufdd0"
WORDS = ["<think>", "</think>", "<|im_end|>", "<|im_start|>", "ab", "aba", "[X]"]
SPELLINGS = Spellings(WORDS)
MARKS = Marks(SPELLINGS, MARK)

client = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<|im_end|>", "<", "|im_", "end|>", "think>", "ab", "a", "[X", "]", " ", "\n", "é"]
    ),
    max_size=8,
).map("".join)


def controls(raw: str) -> list[str]:
    return [piece for piece, is_control in SPELLINGS.split(raw) if is_control]


def raw(text: str) -> str:
    return str.__str__(text)


@given(client)
def test_no_spelling_survives_in_a_clients_string_and_the_text_does(text):
    marked = MARKS.text(text)
    assert controls(raw(marked)) == []
    assert raw(marked).replace(MARK, "") == text


@given(st.lists(client, min_size=2, max_size=4), st.sampled_from(["", "\n", " "]))
def test_strings_put_side_by_side_by_code_that_knows_no_marks_form_no_spelling(parts, between):
    assert controls(between.join(raw(MARKS.text(part)) for part in parts)) == []


@given(client, client)
def test_one_behind_the_other_has_the_marks_of_both(left, right):
    one, two = MARKS.text(left), MARKS.text(right)
    together = one + two
    assert together == left + right and len(together) == len(left + right)
    assert raw(together) == raw(MARKS.read(raw(one) + raw(two)))
    assert raw(one + raw(two)) == raw(raw(one) + two) == raw(together)
    assert raw((together + "x")[1:]) == raw(MARKS.read(raw(together) + "x")[1:])


@given(client)
def test_marks_stand_where_a_spelling_may_begin(text):
    ends = {len(text) - n + 1 for n in range(1, len(text) + 1) for word in WORDS if word[:n] == text[len(text) - n :]}
    ends -= {len(text) - len(word) + 1 for word in WORDS if text.endswith(word)}
    assert SPELLINGS.edges(text) | ends == SPELLINGS.edges(text)
    assert SPELLINGS.edges(text) <= {0, *range(max(len(text) - SPELLINGS.longest, 0), len(text) + 1)}


@given(client, st.integers(-9, 9), st.integers(-9, 9))
def test_a_marked_string_reads_like_the_plain_one(text, i, j):
    marked = MARKS.text(text)
    assert (marked == text, len(marked), hash(marked), bool(marked)) == (True, len(text), hash(text), bool(text))
    assert [*marked] == [*text]
    assert marked[i:j] == text[i:j]
    assert marked[i:j:2] == text[i:j:2]
    for part in ("</think>", "<|im_end|>", "a", "\n", " "):
        assert (part in marked) == (part in text)
        assert marked.split(part) == text.split(part)
        assert marked.rsplit(part, 1) == text.rsplit(part, 1)
        assert marked.partition(part) == text.partition(part)
        assert marked.rpartition(part) == text.rpartition(part)
        assert marked.replace(part, "_") == text.replace(part, "_")
        assert marked.strip(part) == text.strip(part)
        assert marked.removeprefix(part) == text.removeprefix(part)
        assert marked.removesuffix(part) == text.removesuffix(part)
        assert (marked.startswith(part), marked.endswith(part)) == (text.startswith(part), text.endswith(part))
        assert (marked.find(part), marked.rfind(part), marked.count(part)) == (
            text.find(part),
            text.rfind(part),
            text.count(part),
        )
    assert (marked.strip(), marked.lstrip(), marked.rstrip()) == (text.strip(), text.lstrip(), text.rstrip())
    assert (marked.split(), marked.splitlines()) == (text.split(), text.splitlines())
    assert (marked.upper(), marked.title()) == (text.upper(), text.title())


OPERATIONS = [
    lambda t: t[1:],
    lambda t: t[:-1],
    lambda t: t[::-1][::-1],
    lambda t: t.strip("<"),
    lambda t: t.replace("\n", ""),
    lambda t: t.replace(" ", "ab"[:0]),
    lambda t: "".join(t.split(" ")),
    lambda t: "".join(t.split()),
    "".join,
    lambda t: t.upper().lower(),
    lambda t: t + t,
    lambda t: t * 2,
    lambda t: t.partition("\n")[0] + t.partition("\n")[2],
    lambda t: "%s-%s" % (t, t),  # noqa: UP031
    lambda t: f"{t}{t}",
]


@given(client, st.lists(st.sampled_from(OPERATIONS), max_size=4))
def test_nothing_done_to_a_clients_string_makes_a_control_token(text, operations):
    marked, plain = MARKS.text(text), text
    for operation in operations:
        marked, plain = MARKS.read(operation(marked)), operation(plain)
    assert controls(raw(marked)) == []
    assert raw(marked).replace(MARK, "") == plain


def test_a_templates_own_spellings_stay_whole_beside_a_clients():
    text = "<|im_start|>" + MARKS.text("a<|im_end|>b") + "<|im_end|>"
    assert isinstance(text, Marked)
    assert controls(raw(text)) == ["<|im_start|>", "<|im_end|>"]
    assert controls(raw(text.strip().removeprefix("<|im_start|>"))) == ["<|im_end|>"]


def test_the_longest_spelling_wins_where_several_begin():
    assert [*SPELLINGS.split("xababa")] == [("x", False), ("aba", True), ("ba", False)]


def test_a_client_cannot_have_a_template_join_what_it_kept_apart():
    for text, operation in (("<|im_\rend|>", lambda t: t.replace("\r", "")), ("<THINK>", lambda t: t.lower())):
        joined = MARKS.read("".join(["<|im_start|>", raw(MARKS.text(text))]))
        assert controls(raw(operation(joined))) in ([], ["<|im_start|>"])


def test_a_mark_is_a_character_the_input_does_not_have():
    noncharacters = [chr(c) for c in range(0xFDD0, 0xFDF0)]
    assert free_characters(["\ufdd0"], 2) == ["\ufdd1", "\ufdd2"]
    (private,) = free_characters(["".join(noncharacters)], 1)
    assert private == "\U000f0000"


def test_texts_that_leave_no_character_for_a_mark_are_refused():
    every = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xF0000, 0x10FFFE)]))
    with pytest.raises(ApiError) as refused:
        free_characters([every], 1)
    assert (refused.value.status, refused.value.code) == (400, "invalid_prompt")
    assert every[:1] not in refused.value.message
    with pytest.raises(StartupError, match="every private-use character"):
        ChatTemplate(every, spellings=SPELLINGS, variables={})


@pytest.mark.parametrize("count", [1, 3_000])
def test_a_thousand_control_tokens_are_found_as_well_as_one(count):
    spellings = Spellings(f"<unused{i}>" for i in range(count))
    text = "x<unused0>" * 1000 + "<unused"
    assert [piece for piece, is_control in spellings.split(text) if is_control] == ["<unused0>"] * 1000
    assert len(spellings.places(text)) == 1002


@given(client, client, st.booleans())
def test_adding_text_marks_what_reading_the_sum_would_mark(text, other, is_marked):
    marked = MARKS.text(text)
    if not isinstance(marked, Marked):
        return
    added = MARKS.text(other) if is_marked else other
    for total in (marked + added, added + marked):
        read = MARKS.read(raw(total))
        assert isinstance(total, Marked)
        assert (raw(total), total._plain, total._places) == (raw(read), read._plain, read._places)
        assert total._plain == raw(total).replace(MARK, "")
