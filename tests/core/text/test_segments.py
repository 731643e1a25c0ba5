import sys
import threading
from array import array
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ChatJob, Message, Part
from ninfer_core.text.prompt import PromptBuilder
from ninfer_core.text.segments import ENTRY_BYTES, SegmentCache, SegmentedTokenizer, Stretch
from ninfer_core.text.tokenizer import HFTokenizer

WHITE = ["\n\n", "   ", "\n<"]  # the last one is a control token that begins as the first ends
KINDS = [
    "byte-level",
    "byte-level-prefix-space",
    "byte-level-nfkc",
    "byte-level-white-space-tokens",
    "byte-level-flags",
    "metaspace-first",
    "metaspace-always",
    "metaspace-never",
    "prepend-and-replace",
    "unigram",
]


def with_tokens(document: dict, tokens: list[str], **flags: bool) -> None:
    added = [entry["id"] for entry in document["added_tokens"]]
    first = max(*added, len(document["model"]["vocab"]) - 1) + 1
    for number, token in enumerate(tokens, first):
        document["added_tokens"].append({"id": number, "content": token, "special": False, **flags})


def changed_byte_level(kind: str, data: bytes) -> dict:
    document = msgspec.json.decode(data)
    if kind == "byte-level-prefix-space":
        document["pre_tokenizer"]["add_prefix_space"] = True
    elif kind == "byte-level-nfkc":
        strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, strip]}
    elif kind == "byte-level-white-space-tokens":
        with_tokens(document, WHITE)
    elif kind == "byte-level-flags":
        with_tokens(document, ["<left>"], lstrip=True)
        with_tokens(document, ["<right>"], rstrip=True)
        with_tokens(document, ["word"], single_word=True)
        with_tokens(document, ["tag", *WHITE])
    return document


def changed_sentencepiece(kind: str, data: bytes) -> dict:
    document = msgspec.json.decode(data)
    with_tokens(document, ["<think>", "</think>"])
    if kind.startswith("metaspace"):
        document["pre_tokenizer"]["prepend_scheme"] = kind.removeprefix("metaspace-")
    elif kind == "prepend-and-replace":
        document["pre_tokenizer"] = None
        steps = [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]
        document["normalizer"] = {"type": "Sequence", "normalizers": steps}
    elif kind == "unigram":
        words = [[word, -float(i % 7) - 1] for word, i in document["model"]["vocab"].items()]
        document["model"] = {"type": "Unigram", "unk_id": 0, "vocab": words, "byte_fallback": True}
    return document


@pytest.fixture(scope="module")
def tokenizers(byte_level_document, sentencepiece_document) -> dict[str, HFTokenizer]:
    found = {}
    for kind in KINDS:
        if kind.startswith("byte-level"):
            document = changed_byte_level(kind, byte_level_document)
        else:
            document = changed_sentencepiece(kind, sentencepiece_document)
        found[kind] = HFTokenizer(msgspec.json.encode(document))
    return found


WORDS = [
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", "</s>", "<unk>", "<left>", "<right>", "word", "tag"),
    *("<", "|im_", "end|>", "think>", "\n", "\n\n", "\n<", " ", "   ", "\t", "hell", "he", "x", "the cat", "3", "'s"),
    *("é", "e\u0301", "ﬁ", "\u2003", "東京", "🙂", "▁", "\x00", "\u0301"),
]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.characters(exclude_categories=["Cs"])), max_size=14).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(conversation=st.lists(texts, min_size=1, max_size=4), first=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_a_remembered_text_is_encoded_as_the_tokenizer_encodes_it(tokenizers, kind, conversation, first):
    tokenizer = tokenizers[kind]
    kept, forgetful = SegmentedTokenizer(tokenizer), SegmentedTokenizer(tokenizer, SegmentCache(0))
    grown = ""
    for text in conversation:
        grown += text
        for part in (grown, text):
            expected = tokenizer.encode_with_control(part, first=first)
            assert kept.encode_with_control(part, first=first) == expected
            assert kept.encode_with_control(part, first=first) == expected
            assert forgetful.encode_with_control(part, first=first) == expected
            assert kept.encode(part, first=first) == tokenizer.encode(part, first=first)
    assert len(forgetful.cache) == 0


@pytest.mark.parametrize(
    ("kind", "text", "alone"),
    [
        ("byte-level-white-space-tokens", "a\n\n<x", "\n<"),  # the white space is found first, then no control token
        ("byte-level-flags", "tagword", "word"),  # a word of its own only beside what is no word
        ("byte-level-flags", "<right>   <|im_end|>", "   "),  # taken in by its neighbour
        ("metaspace-first", "hell</s>hell", "hell"),
    ],
)
def test_what_stands_beside_a_stretch_decides_where_it_is_cut(tokenizers, kind, text, alone):
    tokenizer = tokenizers[kind]
    segments = SegmentedTokenizer(tokenizer)
    segments.encode_with_control(alone)
    assert segments.encode_with_control(text) == tokenizer.encode_with_control(text)


class Counting:
    """A tokenizer that notes what it is asked to encode."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.tokenizer = tokenizer
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.tokenizer, name)

    def encode_many(self, texts: list[str], *, control: bool, first: bool) -> list[list[int]]:
        self.asked += texts
        return self.tokenizer.encode_many(texts, control=control, first=first)


def test_a_longer_conversation_encodes_only_what_is_new(byte_level):
    counting = Counting(byte_level)
    segments = SegmentedTokenizer(counting)  # type: ignore[arg-type]
    turn = "<|im_start|>user\nthe cat<|im_end|>\n"
    segments.encode_with_control(turn)
    assert counting.asked == ["user\nthe cat", "\n"]
    segments.encode_with_control(turn + "<|im_start|>user\nthe mat<|im_end|>\n")
    assert counting.asked == ["user\nthe cat", "\n", "user\nthe mat"]


def test_a_tokenizer_whose_tokens_depend_on_their_neighbours_is_given_the_text_whole(tokenizers):
    counting = Counting(tokenizers["byte-level-flags"])
    text = "<|im_start|>a<|im_end|> <left> b"
    SegmentedTokenizer(counting).encode_with_control(text)  # type: ignore[arg-type]
    assert counting.asked == [text]


def test_the_first_stretch_and_plain_text_are_remembered_apart(tokenizers):
    tokenizer = tokenizers["metaspace-first"]
    segments = SegmentedTokenizer(tokenizer)
    both = segments.encode_with_control("hell</s>hell"), segments.encode("hell", first=True)
    assert both[0] == [
        *tokenizer.encode("hell"),
        tokenizer.control_tokens["</s>"],
        *tokenizer.encode("hell", first=False),
    ]
    assert segments.encode("</s>") == tokenizer.encode("</s>")
    assert segments.encode_with_control("</s>") == [tokenizer.control_tokens["</s>"]]


def a_stretch(text: str) -> Stretch:
    return Stretch(text, True, False)


def size(text: str, tokens: int) -> int:
    return sys.getsizeof(text) + 4 * tokens + ENTRY_BYTES


def test_the_least_recently_used_stretch_is_forgotten_first():
    ids = array("I", [1, 2])
    cache = SegmentCache(5 * size("a", 2))
    for text in "abcde":
        cache.put(a_stretch(text), ids)
    assert cache.get([a_stretch("a")]) == [ids]
    cache.put(a_stretch("f"), ids)
    found = cache.get([a_stretch(text) for text in "abcdef"])
    assert [ids is not None for ids in found] == [True, False, True, True, True, True]


def test_one_huge_stretch_does_not_empty_the_cache():
    cache = SegmentCache(100_000)
    cache.put(a_stretch("small"), array("I", [1]))
    cache.put(a_stretch("x" * 30_000), array("I", [1]))
    assert cache.get([a_stretch("small"), a_stretch("x" * 30_000)]) == [array("I", [1]), None]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60), st.booleans()), max_size=80))
def test_the_bytes_held_are_those_of_the_entries_and_within_the_limit(walk):
    cache = SegmentCache(4000)
    for name, tokens, look in walk:
        key = a_stretch("é" * name)
        cache.get([key]) if look else cache.put(key, array("I", range(tokens)))
        assert cache.bytes_held == sum(size(key.text, len(ids)) for key, ids in cache._entries.items()) <= 4000


def test_threads_that_share_a_small_cache_get_what_one_alone_gets(byte_level):
    segments = SegmentedTokenizer(byte_level, SegmentCache(20_000))
    prompts = ["".join(f"<|im_start|>user {i * j % 13} the cat<|im_end|>\n" for j in range(9)) for i in range(30)]
    expected = [byte_level.encode_with_control(prompt) for prompt in prompts]
    outcomes: list[bool] = []

    def work() -> None:
        outcomes.append([segments.encode_with_control(prompt) for _ in range(4) for prompt in prompts] == expected * 4)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4
    assert segments.cache.bytes_held <= 20_000


def jobs() -> Iterator[ChatJob]:
    """A conversation turn by turn; one turn quotes control tokens."""
    turns = ("hello", "the <|im_end|> cat </think>", " sat", "", "on <think>", "the mat\n\n")
    messages: list[Message] = []
    for at, text in enumerate(turns):
        messages.append(Message(role="assistant" if at % 2 else "user", content=(Part(text=text),)))
        yield ChatJob(messages=tuple(messages))


@pytest.mark.parametrize("name", ["qwen", "chatml"])
def test_a_builder_with_a_past_gives_the_prompts_of_a_new_one(name, request):
    format = request.getfixturevalue(name)
    defaults = ("default_thinking", "default_effort", "default_preserve_thinking", "template_override")
    settings = dict.fromkeys(defaults)
    old = PromptBuilder(format, **settings)
    for _ in range(2):
        for job in jobs():
            assert old.chat(job) == PromptBuilder(format, **settings).chat(job)
