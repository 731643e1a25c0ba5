import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import Tokenizer
from ninfer_core.api.text import HFTokenizer
from ninfer_core.errors import ArtifactError, InvariantError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def spelled(tokenizer: HFTokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def changed(document: bytes, **members: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(document), **members})


@given(text=texts)
def test_byte_level_tokens_spell_the_text(byte_level, text):
    # the document's own normalizer is NFC
    import unicodedata

    assert spelled(byte_level, byte_level.encode(text)).decode() == unicodedata.normalize("NFC", text)


@given(text=texts.filter(lambda text: "▁" not in text))
def test_sentencepiece_tokens_spell_the_text_after_a_word_start_space(sentencepiece, text):
    ids = sentencepiece.encode(text)
    assert spelled(sentencepiece, ids).decode() == (" " + text if text and not text.startswith(" ") else text)
    assert spelled(sentencepiece, sentencepiece.encode(text, first=False)).decode() == text


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_every_control_token_is_text_in_plain_text_and_itself_in_control_text(kind, request):
    tokenizer: HFTokenizer = request.getfixturevalue(kind)
    control = set(tokenizer.control_tokens.values())
    for word, number in tokenizer.control_tokens.items():
        for text in (word, f"he {word}ll", word + word):
            plain = tokenizer.encode(text)
            assert control.isdisjoint(plain)
            assert spelled(tokenizer, plain).decode().strip() == text
            assert tokenizer.encode_with_control(text).count(number) == text.count(word)
        assert tokenizer.token_bytes(number) == word.encode()


def test_a_control_token_that_merges_or_whole_words_would_reach_stays_text(byte_level_document):
    document = msgspec.json.decode(byte_level_document)
    model = document["model"]
    # spelled by merges, and found whole by a model that ignores merges
    word = next(m for m in model["merges"] if "".join(m).isalpha() and len("".join(m)) == 2)
    document["added_tokens"].append(
        {"id": model["vocab"]["".join(word)], "content": "".join(word), "special": True, "normalized": False}
    )
    for ignore in (False, True):
        model["ignore_merges"] = ignore
        tokenizer = HFTokenizer(msgspec.json.encode(document))
        assert len(tokenizer.encode("".join(word))) == 2
        assert len(tokenizer.encode_with_control("".join(word))) == 1


def test_a_normalizer_cannot_turn_text_into_a_control_token(byte_level_document):
    document = msgspec.json.decode(byte_level_document)
    document["normalizer"] = {"type": "NFKC"}
    for entry in document["added_tokens"]:
        entry["normalized"] = True
    tokenizer = HFTokenizer(msgspec.json.encode(document))
    assert tokenizer.control_tokens["<think>"] not in tokenizer.encode_with_control("＜think＞")
    assert tokenizer.control_tokens["<think>"] in tokenizer.encode_with_control("<think>")


def test_added_tokens_that_spell_white_space_are_ordinary_text(byte_level_document):
    document = msgspec.json.decode(byte_level_document)
    size = max(entry["id"] for entry in document["added_tokens"]) + 1
    document["added_tokens"].append({"id": size, "content": "\n\n\n", "special": False, "normalized": False})
    tokenizer = HFTokenizer(msgspec.json.encode(document))
    assert "\n\n\n" not in tokenizer.control_tokens
    assert tokenizer.encode("a\n\n\nb").count(size) == tokenizer.encode_with_control("a\n\n\nb").count(size) == 1


def test_only_special_tokens_are_withheld_from_output(byte_level):
    special = {word for word, number in byte_level.control_tokens.items() if number in byte_level.special_ids}
    assert special == {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"}
    assert {"<think>", "</think>"} <= byte_level.control_tokens.keys() - special


def test_encoding_with_control_equals_the_library(byte_level, byte_level_document):
    import tokenizers

    theirs = tokenizers.Tokenizer.from_buffer(byte_level_document)
    text = "<|im_start|>user\n\n\nthe cat 東京 <think></think> x<|im_end|>\n<|im_start|>"
    assert byte_level.encode_with_control(text) == theirs.encode(text, add_special_tokens=False).ids
    assert byte_level.size == theirs.get_vocab_size()


def test_the_configuration_completes_the_added_tokens(byte_level_document):
    size = HFTokenizer(byte_level_document).size
    table = {str(size): {"content": "<new>", "special": True}, "0": {"content": "!", "special": False}}
    config = msgspec.json.encode({"added_tokens_decoder": table})
    tokenizer = HFTokenizer(byte_level_document, config)
    assert tokenizer.size == size + 1
    assert tokenizer.encode_with_control("a<new>")[-1] == tokenizer.control_tokens["<new>"] == size
    assert size in tokenizer.special_ids


def broken(document: bytes) -> dict[str, tuple[bytes, bytes | None]]:
    added = msgspec.json.decode(document)["added_tokens"]
    last = max(entry["id"] for entry in added)
    gap = [*added, {"id": last + 5, "content": "<far>", "special": True}]
    far = msgspec.json.encode({"added_tokens_decoder": {str(last + 2): {"content": "<far>"}}})
    other = msgspec.json.encode({"added_tokens_decoder": {str(last): {"content": "<other>"}}})
    model = msgspec.json.decode(document)["model"]
    return {
        "empty": (b"", None),
        "cut": (document[:-20], None),
        "not-json": (b"\x00\xff", None),
        "list": (b"[]", None),
        "no-model": (b'{"added_tokens": []}', None),
        "deep": (b"[" * 100_000, None),
        "merge-out-of-vocabulary": (changed(document, model={**model, "merges": [["nope", "no"]]}), None),
        "added-not-a-list": (changed(document, added_tokens=3), None),
        "added-without-id": (changed(document, added_tokens=[{"content": "x"}]), None),
        "word-piece": (changed(document, model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}), None),
        "ids-with-a-gap": (changed(document, added_tokens=gap), None),
        "configured-gap": (document, far),
        "configured-otherwise": (document, other),
        "configured-badly": (document, b'{"added_tokens_decoder": {"x": {}}}'),
        "configuration-not-json": (document, b"{"),
    }


@pytest.mark.parametrize("name", broken(b'{"added_tokens":[{"id":0}],"model":{}}'))
def test_a_broken_document_is_one_line_that_names_the_file(name, byte_level_document):
    with pytest.raises(ArtifactError, match=r"^tokenizer(_config)?\.json: ") as caught:
        HFTokenizer(*broken(byte_level_document)[name])
    assert "\n" not in str(caught.value)


def test_ids_outside_the_vocabulary_are_refused(byte_level):
    for number in (-1, byte_level.size):
        with pytest.raises(InvariantError):
            byte_level.token_bytes(number)


def test_threads_may_share_it(byte_level):
    tokenizer: Tokenizer = byte_level
    text = "the cat <|im_end|> sat 東京 " * 50
    expected = tokenizer.encode(text), tokenizer.encode_with_control(text)
    results: list[object] = []

    def work() -> None:
        for _ in range(20):
            ids = tokenizer.encode(text), tokenizer.encode_with_control(text)
            results.append(ids == expected and spelled(byte_level, ids[0]).decode() == text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
