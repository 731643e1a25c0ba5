"""Token log probabilities on the wire."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ninfer_core.api import TokenLogprob

OUTSIDE = -9999.0  # OpenAI's value of a token that is not among the likeliest

TokenBytes = Callable[[int], bytes]


def choice_logprobs(records: Sequence[TokenLogprob], token_bytes: TokenBytes) -> dict[str, Any]:
    """A choice's ``logprobs``; every number in it is finite."""
    return {"content": [_record(record, token_bytes) for record in records], "refusal": None}


def _record(record: TokenLogprob, token_bytes: TokenBytes) -> dict[str, Any]:
    rivals = [_token(token_id, logprob, token_bytes) for token_id, logprob in record.top]
    return {**_token(record.token_id, record.logprob, token_bytes), "top_logprobs": rivals}


def _token(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    """``bytes`` are exact; ``token`` has U+FFFD where they are not text on their own."""
    spelled = token_bytes(token_id)
    # JSON has no infinity: an encoder would say null
    value = logprob if math.isfinite(logprob) else OUTSIDE
    return {"token": spelled.decode("utf-8", "replace"), "logprob": value, "bytes": list(spelled)}
