"""Token log probabilities on the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ninfer_core.api import TokenLogprob

OUTSIDE = -9999.0  # OpenAI's value of a token that is not among the likeliest

TokenBytes = Callable[[int], bytes]


def choice_logprobs(records: Sequence[TokenLogprob], token_bytes: TokenBytes) -> dict[str, Any]:
    """A choice's ``logprobs``."""
    return {"content": token_records(records, token_bytes), "refusal": None}


def token_records(
    records: Sequence[TokenLogprob], token_bytes: TokenBytes, *, exact: bool = True
) -> list[dict[str, Any]]:
    """One object per record; every number in it is finite. ``exact``: with the bytes of its tokens."""
    return [
        {
            **_token(record.token_id, record.logprob, token_bytes, exact),
            "top_logprobs": [_token(rival, logprob, token_bytes, exact) for rival, logprob in record.top],
        }
        for record in records
    ]


def _token(token_id: int, logprob: float, token_bytes: TokenBytes, exact: bool) -> dict[str, Any]:
    """``bytes`` are exact; ``token`` has U+FFFD where they are not text on their own."""
    spelled = token_bytes(token_id)
    # JSON has no infinity: an encoder would say null
    value = logprob if math.isfinite(logprob) else OUTSIDE
    token = {"token": spelled.decode("utf-8", "replace"), "logprob": value}
    return {**token, "bytes": list(spelled)} if exact else token
