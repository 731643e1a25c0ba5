"""``tokenizer.json`` and its companions, made from the vocabulary a GGUF file carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn

import msgspec

from ninfer_core.api import ArtifactError

from .pretokenizers import PRE_TOKENIZERS


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


PREFIX = "tokenizer.ggml."
TABLES = frozenset(PREFIX + name for name in ("tokens", "token_type", "scores", "merges"))
SPACE = "\u2581"


class Vocabulary:
    """The tokenizer part of the metadata, checked."""

    def __init__(self, path: str, metadata: Mapping[str, Any]) -> None:
        self.path, self.metadata = path, metadata
        self.tokens: list[str] = self.table("tokens", str)
        self.types: list[int] = self.table("token_type", int, optional=True) or [TokenType.NORMAL] * len(self.tokens)
        self.scores: list[float] = self.table("scores", float, optional=True)
        self.merges: list[str] = self.table("merges", str, optional=True)
        if len(self.types) != len(self.tokens) or len(self.scores) not in (0, len(self.tokens)):
            self.fail(
                f"{len(self.tokens)} tokens, {len(self.types)} token types and {len(self.scores)} scores "
                "do not belong together"
            )
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self.ids[token] != index)
            self.fail(f"token {twice!r} occurs twice")

    def fail(self, message: str) -> NoReturn:
        raise ArtifactError(f"{self.path}: {message}")

    def table(self, name: str, kind: type, optional: bool = False) -> list[Any]:
        items: Any = self.metadata.get(PREFIX + name, [] if optional else None)
        if not isinstance(items, list) or not all(type(item) is kind for item in items):
            self.fail(f"{PREFIX}{name} is missing or not an array of {kind.__name__}")
        return list(items)

    def id_of(self, role: str) -> int | None:
        """The id under ``tokenizer.ggml.<role>_token_id``."""
        index = self.metadata.get(f"{PREFIX}{role}_token_id")
        if index is None:
            return None
        if type(index) is not int or not 0 <= index < len(self.tokens):
            self.fail(f"{PREFIX}{role}_token_id is {index!r}; ids are 0..{len(self.tokens) - 1}")
        return index

    def token_of(self, role: str) -> str | None:
        index = self.id_of(role)
        return None if index is None else self.tokens[index]

    def flag(self, name: str, default: bool) -> bool:
        value: bool = self.metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            self.fail(f"{PREFIX}{name} is {value!r}; a truth value is expected")
        return value


def resources(path: str, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The tokenizer's files; empty when the file carries no vocabulary."""
    if PREFIX + "model" not in metadata:
        return {}
    vocabulary = Vocabulary(path, metadata)
    model = metadata[PREFIX + "model"]
    builders = {"gpt2": byte_level, "llama": sentence_pieces}
    if model not in builders:
        raise ArtifactError(f"{path}: tokenizer model {model!r} cannot be read; known: {', '.join(builders)}")
    try:
        tokenizer, adds_bos = builders[model](vocabulary)
        add_control_tokens(tokenizer, vocabulary)
    except ArtifactError:
        raise
    except Exception:  # the tokenizers library raises bare Exception, with texts of its own
        raise ArtifactError(f"{path}: the vocabulary and merges do not make a tokenizer") from None
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": msgspec.json.encode(tokenizer_config(vocabulary, adds_bos)),
        "generation_config.json": msgspec.json.encode(generation_config(vocabulary)),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template.encode()
    return files


def byte_level(vocabulary: Vocabulary) -> tuple[Any, bool]:
    """Byte-level BPE, and whether it puts a BOS token first where the file does not say."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = vocabulary.metadata.get(PREFIX + "pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        vocabulary.fail(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; known: {', '.join(PRE_TOKENIZERS)}")
    pre = PRE_TOKENIZERS[name]
    # a token may hold no space of its own, so the first one after the first character parts the two
    merges = [(merge[:cut], merge[cut + 1 :]) for merge in vocabulary.merges if (cut := merge.find(" ", 1)) > 0]
    if len(merges) != len(vocabulary.merges):
        vocabulary.fail("an entry of tokenizer.ggml.merges is not two tokens")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre.ignores_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    prefix = vocabulary.flag("add_space_prefix", False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.adds_bos


def sentence_pieces(vocabulary: Vocabulary) -> tuple[Any, bool]:
    """SentencePiece's BPE with byte fallback, as merges ranked by the score of what they make."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    if not vocabulary.scores:
        vocabulary.fail("tokenizer.ggml.scores is missing")
    unknown = vocabulary.token_of("unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=merges_by_score(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=TokenType.BYTE in vocabulary.types,
        )
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    front = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*front, normalizers.Replace(" ", SPACE)])
    back = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *back]
    )
    return tokenizer, True


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a normal token of two tokens, the best-scored product first."""
    ids, found = vocabulary.ids, []
    for index, token in enumerate(vocabulary.tokens):
        if vocabulary.types[index] != TokenType.NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((-vocabulary.scores[index], index, left, right))
    found.sort()
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in found]


def add_control_tokens(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Control and user-defined tokens are found in the text before it is cut; only control tokens are special."""
    from tokenizers import AddedToken

    special: dict[int, bool] = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}
    added = [
        AddedToken(token, normalized=False, special=special[kind])
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in special and token
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])


def tokenizer_config(vocabulary: Vocabulary, adds_bos: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "add_bos_token": vocabulary.flag("add_bos_token", adds_bos),
        "add_eos_token": vocabulary.flag("add_eos_token", False),
        "add_prefix_space": vocabulary.flag("add_space_prefix", vocabulary.metadata[PREFIX + "model"] == "llama"),
    }
    for role, key in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        if (token := vocabulary.token_of(role)) is not None:
            config[key] = token
    return config


def generation_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokens that end a turn: end of sequence, of turn, of message."""
    ends: Sequence[int | None] = [vocabulary.id_of(role) for role in ("eos", "eot", "eom")]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    if (bos := vocabulary.id_of("bos")) is not None:
        config["bos_token_id"] = bos
    return config
