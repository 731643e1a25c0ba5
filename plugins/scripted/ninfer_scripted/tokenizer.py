"""One token per byte, the control tokens of the Qwen form, one token per piece a script brings along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
THINK, THINK_END, TOOL_CALL = "<think>", "</think>", "<tool_call>"
SPECIAL = (IM_START, IM_END, END_OF_TEXT, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CONTROL = (*SPECIAL, THINK, THINK_END, TOOL_CALL, "</tool_call>")
FAULTS = ("[wrong page]", "[wrong state]", "[wrong position]")
"""What the model says when it does not find what it stored."""


class ScriptedTokenizer:
    """``encode`` uses bytes alone, ``encode_with_control`` control tokens too; pieces come from replies only.

    ``pieces`` are distinct and longer than one byte. Control tokens of ``special_ids`` are never shown as text.
    """

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._spellings = [bytes([byte]) for byte in range(256)]
        self.control_tokens: Mapping[str, int] = {text: len(self._spellings) + i for i, text in enumerate(CONTROL)}
        self._spellings += [text.encode() for text in CONTROL]
        self.faults = {text: len(self._spellings) + i for i, text in enumerate(FAULTS)}
        self._spellings += [text.encode() for text in FAULTS]
        self.pieces = {piece: len(self._spellings) + i for i, piece in enumerate(pieces)}
        self._spellings += pieces
        self.size = len(self._spellings)
        self.special_ids = frozenset(self.control_tokens[text] for text in SPECIAL)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_with_control(self, text: str) -> list[int]:
        return [token for part in cut(text.encode()) for token in self.tokens(part)]

    def token_bytes(self, token_id: int) -> bytes:
        return self._spellings[token_id]

    def spell(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of some tokens."""
        return b"".join([self._spellings[token] for token in token_ids])

    def tokens(self, part: bytes) -> list[int]:
        """A part of ``cut``: its control token, or its bytes."""
        control = self.control_tokens.get(part.decode("utf-8", "replace"))
        return [control] if control is not None else list(part)

    def piece_tokens(self, piece: bytes) -> list[int]:
        """A piece of a reply: each stretch between control tokens is one token."""
        out: list[int] = []
        for part in cut(piece):
            known = self.pieces.get(part)
            out += [known] if known is not None else self.tokens(part)
        return out


_CUT = re.compile(b"(" + b"|".join(re.escape(text.encode()) for text in CONTROL) + b")")


def cut(data: bytes) -> list[bytes]:
    """The stretches of some bytes, control-token spellings apart; none is empty."""
    return [part for part in _CUT.split(data) if part]


def new_pieces(data: bytes) -> list[bytes]:
    """The stretches of a piece that need a token of their own: longer than a byte, not a control token."""
    controls = {text.encode() for text in CONTROL}
    return [part for part in cut(data) if len(part) > 1 and part not in controls]
