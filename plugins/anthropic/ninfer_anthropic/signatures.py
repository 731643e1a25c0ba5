"""Signatures of thinking blocks. They are opaque to clients, prove nothing, and hold what a client was not shown."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from binascii import Error, a2b_base64

from ninfer_core.api import ApiError

RESTORABLE = "ninfer-reasoning.v1:"
"""What follows it is the reasoning, as base64 of its UTF-8."""

SHOWN = "ninfer-shown.v1:"
"""What follows it is a digest: the reasoning itself is in the block."""


def restorable(reasoning: str) -> str:
    """The signature of a block whose text is omitted."""
    return RESTORABLE + b64encode(reasoning.encode()).decode()


def shown(reasoning: str) -> str:
    """The signature of a block whose text is shown."""
    return SHOWN + b64encode(hashlib.blake2b(reasoning.encode(), digest_size=24).digest()).decode()


def restored(thinking: str, signature: str | None, place: str) -> str:
    """The reasoning of a block that came back. Its text counts first; a foreign signature holds nothing.

    ApiError ``invalid_thinking_signature`` for one of ours that cannot be read.
    """
    if thinking or signature is None or not signature.startswith(RESTORABLE):
        return thinking
    try:
        return a2b_base64(signature[len(RESTORABLE) :].encode("ascii"), strict_mode=True).decode()
    except (Error, UnicodeError):
        param = f"{place}.signature"
        text = f"'{param}' begins with {RESTORABLE}, but what follows is not the base64 of a text."
        raise ApiError("invalid_thinking_signature", text, param=param) from None
