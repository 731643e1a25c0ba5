"""How much text one token of a ``tokenizer.json`` can stand for at most: what makes a size prove a count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tokenizer_json import BYTE_OF, Document

NFC_SHRINKS = 3
"""What NFC makes of a text has at least a third of its bytes: U+1112 U+1161 U+11AB becomes one character of three
bytes, U+212A becomes K."""
NFC_MAKES = b"K;`"  # of the characters below U+0080, those that NFC makes of others
KEEPING = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split")  # pre-tokenizers that drop nothing
FALLBACK = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def longest_token(document: Document, kind: str, pieces: Sequence[str]) -> int | None:
    """Bytes of text; None when there is no bound. ``kind`` as ``tokenizer_json.kind``, ``pieces`` the spellings by id.

    There is none where something may be dropped or taken together: by a normalizer or pre-tokenizer not known here, as
    an unknown word, or by an added token with flags.
    """
    shrinks = _shrinks(document.get("normalizer"))
    flagged = any(entry["lstrip"] or entry["rstrip"] for entry in document["added_tokens"])
    if shrinks is None or flagged or not _keeps(document.get("pre_tokenizer")):
        return None
    byte_level = kind == "byte_level"
    if not byte_level and not document["model"].get("byte_fallback"):
        return None
    if not (set(BYTE_OF) if byte_level else FALLBACK) <= set(pieces):
        return None
    added = {entry["content"] for entry in document["added_tokens"]}
    longest = 1
    for piece in pieces:
        # a character of a piece is one to four bytes of text
        if 4 * shrinks * len(piece) > longest:
            text = piece.encode()
            if piece in added:
                longest = max(longest, len(text))
                continue
            if byte_level:
                text = bytes(BYTE_OF.get(char, 255) for char in piece)
            rewritten = not text.isascii() or any(byte in text for byte in NFC_MAKES)
            longest = max(longest, len(text) * (shrinks if rewritten else 1))
    return longest


def _shrinks(normalizer: Any) -> int | None:
    """How many times longer a text may be than what the normalizer makes of it; None: any number of times."""
    if normalizer is None:
        return 1
    kind = normalizer.get("type")
    if kind == "NFC":
        return NFC_SHRINKS
    if kind == "Prepend":
        return 1
    if kind == "Replace":
        return 1 if normalizer.get("content") == "▁" and normalizer.get("pattern") == {"String": " "} else None
    if kind != "Sequence":
        return None
    product = 1
    for step in normalizer["normalizers"]:
        factor = _shrinks(step)
        if factor is None:
            return None
        product *= factor
    return product


def _keeps(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer.get("type") not in KEEPING or pre_tokenizer.get("behavior") == "Removed":
        return False
    return all(_keeps(step) for step in pre_tokenizer.get("pretokenizers") or ())
