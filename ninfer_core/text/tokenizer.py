"""``tokenizer.json`` as the engine's tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import tokenizers

from ninfer_core.errors import ArtifactError, InvariantError

from . import tokenizer_json as doc
from .longest_token import longest_token

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class HFTokenizer:
    """A tokenizer of the ``tokenizers`` library (``api.Tokenizer``). Immutable; any thread may use it.

    Every one of ``added_tokens`` is a control token, except those that only spell white space. ``has_flagged_tokens``:
    whether one takes in white space beside it or has to be a word of its own. ``special_ids`` are the control
    tokens whose text is withheld from output; the others (``<think>``) are text. Raises ArtifactError for a document
    that is broken, of an unsupported kind, or whose ids leave gaps.
    """

    def __init__(self, tokenizer_json: bytes, tokenizer_config: bytes | None = None) -> None:
        document = doc.read(tokenizer_json, tokenizer_config)
        self._kind = doc.kind(document)
        control = doc.control_tokens(document)
        plain = doc.without_control(document, control)
        self._full = _build(document)
        self._plain = _build(plain)
        self._full_later, self._plain_later = self._full, self._plain
        if (later := doc.continuing(document)) is not None:
            self._full_later = _build(later)
            self._plain_later = _build({**plain, "pre_tokenizer": later["pre_tokenizer"]})
        self._pieces = _pieces(document, self._full)
        self._added: dict[int, str] = {entry["id"]: entry["content"] for entry in document["added_tokens"]}
        self.added_tokens: Mapping[str, int] = MappingProxyType({s: number for number, s in self._added.items()})
        self.has_flagged_tokens = doc.has_flagged_tokens(document)
        self._bytes: list[bytes | None] = [None] * len(self._pieces)  # filled on first use
        self.size = len(self._pieces)
        self.longest_token = longest_token(document, self._kind, self._pieces)
        self.control_tokens: Mapping[str, int] = MappingProxyType({s: entry["id"] for s, entry in control.items()})
        self.special_ids = frozenset(entry["id"] for entry in control.values() if entry["special"])

    def encode(self, text: str, *, first: bool = True) -> list[int]:
        """Plain text: a control token's spelling is text like any other. ``first`` is False for a text that follows
        others in the prompt, where no word-start space is put before it."""
        return _ids(self._plain if first else self._plain_later, text)

    def encode_with_control(self, text: str, *, first: bool = True) -> list[int]:
        """Text in which a control token's spelling is that token."""
        return _ids(self._full if first else self._full_later, text)

    def encode_many(self, texts: Sequence[str], *, control: bool, first: bool) -> list[list[int]]:
        """Each text by itself, as ``encode_with_control`` (``control``) or ``encode`` would; on several threads."""
        if control:
            chosen = self._full if first else self._full_later
        else:
            chosen = self._plain if first else self._plain_later
        return [encoding.ids for encoding in chosen.encode_batch_fast(texts, add_special_tokens=False)]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; InvariantError outside ``0..size-1``."""
        if not 0 <= token_id < self.size:
            raise InvariantError(f"token id {token_id} is outside 0..{self.size - 1}")
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._pieces[token_id]
        if self._kind == "byte_level":
            try:
                return bytes([doc.BYTE_OF[char] for char in piece])
            except KeyError:
                return piece.encode()
        if byte := _BYTE_PIECE.match(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("▁", " ").encode()


def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # the batch call is the one that spares the offsets, a third of the time
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _build(document: doc.Document) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(document))
    except Exception as error:
        # the library has no error type of its own
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(f"tokenizer.json: the tokenizers library cannot use it: {reason}") from None


def _pieces(document: doc.Document, tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Spelling by id; ids are 0..size-1 without a gap, and added tokens have the ids their document says."""
    for entry in document["added_tokens"]:
        given = tokenizer.token_to_id(entry["content"])
        if given != entry["id"]:
            raise ArtifactError(
                f"tokenizer.json: added token {entry['content']!r} has id {entry['id']}, but would get {given}: "
                "ids must follow the vocabulary without a gap"
            )
    vocabulary: dict[str, Any] = tokenizer.get_vocab(with_added_tokens=True)
    pieces: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for piece, number in vocabulary.items():
        pieces[number] = piece
    if not pieces or None in pieces:
        gap = pieces.index(None) if pieces else 0
        raise ArtifactError(f"tokenizer.json: no token has id {gap}; ids must run from 0 without a gap")
    return [piece for piece in pieces if piece is not None]
