"""Prompts that cannot fit are refused before they are encoded whole; those that nearly fit are counted exactly."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ChatJob, ContextLengthExceeded, Message, Part, RawJob, Tool
from ninfer_core.text import length
from ninfer_core.text.length import LengthGuard
from ninfer_core.text.prompt import PromptBuilder
from ninfer_core.text.tokenizer import HFTokenizer

CONTEXT = 100


class Letters:
    """A token per ``size`` characters; remembers what it was asked to encode."""

    size = 256
    control_tokens: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, size: int = 1, longest_token: int | None = None) -> None:
        self._size = size
        self.longest_token = longest_token
        self.seen = 0

    def encode(self, text: str) -> list[int]:
        self.seen += len(text)
        return [0] * -(-len(text) // self._size)

    encode_with_control = encode

    def token_bytes(self, token_id: int) -> bytes:
        return b"x" * self._size


def refused(guard: LengthGuard, text: str) -> ContextLengthExceeded:
    with pytest.raises(ContextLengthExceeded) as caught:
        guard.check(text)
    return caught.value


def test_a_text_of_usual_density_is_not_looked_at():
    tokenizer = Letters()
    LengthGuard(tokenizer, CONTEXT).check("x" * (length.USUAL * CONTEXT))
    assert tokenizer.seen == 0


def test_a_size_that_proves_it_is_refused_without_encoding():
    tokenizer = Letters(longest_token=7)
    guard = LengthGuard(tokenizer, CONTEXT)
    guard.check(" " * 600)
    error = refused(guard, "x" * 701)
    assert tokenizer.seen == 0
    assert error.fields == {"n_prompt_tokens": 101, "n_ctx": CONTEXT}
    assert error.message == "The prompt has at least 101 tokens, but this server's context holds 100."


def test_a_count_stops_once_it_is_far_beyond():
    tokenizer = Letters()
    error = refused(LengthGuard(tokenizer, CONTEXT), "x" * 10_000_000)
    assert tokenizer.seen == length.PIECE
    assert CONTEXT * length.FAR < int(error.fields["n_prompt_tokens"]) <= length.PIECE
    assert "at least" in error.message


def test_a_long_text_of_few_tokens_passes():
    tokenizer = Letters(size=1000)
    LengthGuard(tokenizer, CONTEXT).check(" " * 200_000)
    assert tokenizer.seen == 200_000


@given(st.integers(1, 40), st.integers(0, 300_000), st.integers(50, 2000))
def test_no_text_that_fits_is_refused_and_no_count_is_too_high(size, characters, context):
    tokenizer = Letters(size=size)
    tokens = -(-characters // size)
    try:
        LengthGuard(tokenizer, context).check("x" * characters)
    except ContextLengthExceeded as error:
        assert context < int(error.fields["n_prompt_tokens"]) <= tokens
    else:
        # what passes is encoded whole, which must stay cheap
        assert tokens <= max(length.USUAL, length.FAR) * context + length.JOINT * (1 + characters // length.PIECE)


def test_what_a_template_takes_away_does_not_count():
    guard = LengthGuard(Letters(), CONTEXT)
    white = Message(role="user", content=(Part(text="\n" * 100_000 + "hi" + " " * 100_000),))
    dropped = Message(role="assistant", content=(Part(text="x" * 100_000),), reasoning="x" * 100_000)
    guard.check_turns([white, dropped])
    with pytest.raises(ContextLengthExceeded):
        guard.check_turns([white, Message(role="user", content=(Part(text="x" * 5000),) * 10)])


# ---------------------------------------------------------------- in prompts


def prompts(format, **options):
    defaults = dict.fromkeys(("default_thinking", "default_effort", "default_preserve_thinking", "template_override"))
    return PromptBuilder(format, **{**defaults, "max_context": CONTEXT, **options})


def user(text: str, role: str = "user") -> ChatJob:
    return ChatJob(messages=(Message(role=role, content=(Part(text=text),)),))


def test_more_turns_than_a_far_context_has_tokens_are_refused_unread():
    guard = LengthGuard(Letters(), 10)
    turns = [Message(role="assistant", content=(Part(text=""),))] * 41
    guard.check_turns(turns[:40])
    with pytest.raises(ContextLengthExceeded, match="at least 41"):
        guard.check_turns(turns)


def tools(count: int, text: str = "") -> list[Tool]:
    definition = '{"type": "function", "function": {"name": "t%d", "description": "%s"}}'
    return [Tool(name=f"t{at}", definition=definition % (at, text)) for at in range(count)]


def test_more_turns_than_could_fit_are_refused_unread_where_a_turn_is_many_tokens():
    guard = LengthGuard(Letters(), 10)
    turns = [Message(role="assistant", content=(Part(text=""),))] * 11
    guard.check_turns(turns[:10], turn_tokens=5)
    guard.check_turns(turns, turn_tokens=3)
    with pytest.raises(ContextLengthExceeded, match="at least 11"):
        guard.check_turns(turns, turn_tokens=5)


def test_more_tools_than_could_fit_are_refused_unread():
    tokenizer = Letters()
    guard = LengthGuard(tokenizer, CONTEXT)
    guard.check_tools(tools(CONTEXT // 20))
    assert tokenizer.seen == 0
    with pytest.raises(ContextLengthExceeded, match="at least 101"):
        guard.check_tools(tools(CONTEXT + 1), whole=False)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        guard.check_tools(tools(3, "x" * 400))
    guard.check_tools(tools(3, "x" * 400), whole=False)


def test_white_space_in_a_definition_counts_for_nothing():
    spaced = Tool(name="f", definition='{"type": "function",' + " " * 10_000 + '"function": {"name": "f"}}')
    tokenizer = Letters()
    LengthGuard(tokenizer, CONTEXT).check_tools([spaced])
    assert tokenizer.seen == 0
    broken = Tool(name="f", definition="{" * 1000)
    with pytest.raises(ContextLengthExceeded):
        LengthGuard(tokenizer, CONTEXT).check_tools([broken])


@pytest.mark.parametrize("thread", [pytest.param(0, id="ten-thousand-tools")])
def test_tools_and_turns_far_too_many_are_not_rendered(qwen, monkeypatch, thread):
    shows = {"template_override": "{{ tools | tojson }}{% for m in messages %}{{ m.content }}\n.{% endfor %}"}
    built = prompts(qwen, **shows)
    monkeypatch.setattr(PromptBuilder, "_render", None)
    for job in (
        replace(user("hi"), tools=tuple(tools(10_000))),
        replace(user("hi"), tools=tuple(tools(20, "some words " * 10))),
        ChatJob(messages=user("hi").messages * 1000),
    ):
        with pytest.raises(ContextLengthExceeded, match="at least"):
            built.chat(job)


def test_tools_that_a_template_does_not_show_do_not_count(qwen):
    blind = prompts(qwen, template_override="{{ messages[0].content }}")
    assert len(blind.chat(replace(user("hi"), tools=tuple(tools(10_000)))).ids) < 5
    assert not blind.shows_tools
    names = prompts(qwen, template_override="{% for t in tools %}{{ t.function.name }}{% endfor %}hi")
    assert names.shows_tools
    assert len(names.chat(replace(user("hi"), tools=tuple(tools(3, "x" * 10_000)))).ids) < 20


def test_the_count_of_a_prompt_somewhat_too_long_is_exact(qwen):
    text = "ab " * 110
    built = prompts(qwen).chat(user(text))
    assert CONTEXT < len(built.ids) <= 4 * CONTEXT
    assert built == prompts(qwen, max_context=None).chat(user(text))
    raw = RawJob(prompt=(text,))
    assert prompts(qwen).raw(raw) == prompts(qwen, max_context=None).raw(raw)


def test_a_prompt_far_too_long_is_not_rendered(qwen, monkeypatch):
    built = prompts(qwen)
    monkeypatch.setattr(PromptBuilder, "_render", None)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        built.chat(user("ab " * 100_000))


@pytest.mark.parametrize("role", ["system", "tool", "assistant"])
def test_what_others_wrote_counts_once_it_is_rendered(qwen, role):
    job = ChatJob(messages=(*user("hi").messages, *user("ab " * 100_000, role).messages))
    with pytest.raises(ContextLengthExceeded, match="at least"):
        prompts(qwen).chat(job)


def test_a_raw_prompt_far_too_long_is_not_encoded_whole(qwen):
    with pytest.raises(ContextLengthExceeded, match="at least"):
        prompts(qwen).raw(RawJob(prompt=((1, 2), "ab " * 100_000)))


def test_a_template_that_drops_what_users_wrote_is_believed(qwen):
    last = "{{ messages[-1].content }}"
    history = ChatJob(messages=(*user("ab " * 100_000).messages, *user("hi").messages))
    assert len(prompts(qwen, template_override=last).chat(history).ids) < 5
    with pytest.raises(ContextLengthExceeded):
        prompts(qwen).chat(history)


def test_rendering_alone_has_no_such_bound(qwen):
    assert len(prompts(qwen).render(user("ab " * 10_000))) > 20_000


# ---------------------------------------------------------------- the most text of one token


@pytest.mark.parametrize("which", ["byte_level", "sentencepiece"])
@given(text=st.text(max_size=40) | st.text(alphabet="a\u0301K\u212a\u1100\u1161\u11a8\u0345 ▁`\u1fef", max_size=60))
def test_no_token_stands_for_more_than_the_bound(request, which, text):
    tokenizer = request.getfixturevalue(which)
    assert tokenizer.longest_token is not None
    for encode in (tokenizer.encode, tokenizer.encode_with_control):
        assert len(text.encode()) <= tokenizer.longest_token * len(encode(text))


def test_the_bound_is_a_longest_token(byte_level, sentencepiece):
    # NFC, so each byte of a token that is not ASCII may stand for three
    spelled = [byte_level.token_bytes(token) for token in range(byte_level.size)]
    assert max(map(len, spelled)) <= byte_level.longest_token <= 3 * max(map(len, spelled))
    assert sentencepiece.longest_token == len("▁hell".encode())


def test_nfc_never_shrinks_a_character_more_than_assumed():
    for number in (*range(0x300), *range(0x340, 0x380), *range(0x1F00, 0x2200), *range(0xAC00, 0xB000), 0x2F800):
        char = chr(number)
        for text in (char, unicodedata.normalize("NFD", char)):
            assert len(text.encode()) <= 3 * len(unicodedata.normalize("NFC", text).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "ByteLevel"}]}},
        {"flags": {"rstrip": True}},
        {"flags": {"lstrip": True}},
        {"without": "Ġ"},
    ],
    ids=["nfkc", "strip-accents", "replace", "whitespace-split", "rstrip", "lstrip", "no-space-in-vocabulary"],
)
def test_where_text_may_vanish_there_is_no_bound(byte_level_document, change):
    from ninfer_core.text import tokenizer_json as doc
    from ninfer_core.text.longest_token import longest_token

    document = doc.read(byte_level_document, None)
    pieces = list(document["model"]["vocab"])
    assert longest_token(document, "byte_level", pieces) is not None
    for entry in document["added_tokens"][:1]:
        entry.update(change.pop("flags", {}))
    missing = change.pop("without", None)
    changed = {**document, **change}
    assert longest_token(changed, "byte_level", [piece for piece in pieces if piece != missing]) is None


def test_an_unknown_character_without_fallback_leaves_no_bound(sentencepiece_document):
    document = msgspec.json.decode(sentencepiece_document)
    document["model"]["byte_fallback"] = False
    assert HFTokenizer(msgspec.json.encode(document)).longest_token is None
