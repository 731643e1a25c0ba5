"""What a GPU has drawn, in one buffer, so that it comes down in one piece."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .candidates import DOMAIN

OUT = 2 * DOMAIN + 1  # numbers of one column
DRAWN = -2  # in place of a token: the one its lane has drawn last


class Draws(NamedTuple):
    """In rank order. A column without a finite best logit, or with a NaN, has token -1."""

    tokens: Tensor  # [R] int32
    ids: Tensor  # [R, DOMAIN] int32, -1 where there are fewer candidates
    logprobs: Tensor  # [R, DOMAIN] fp32: of the whole vocabulary, before truncation


def draws_in(buffer: Tensor) -> Draws:
    """The parts of a buffer [R * OUT] int32, on any device."""
    R = len(buffer) // OUT
    # tokens last: the others then begin where a GPU reads best
    ids, logprobs, tokens = buffer.split([R * DOMAIN, R * DOMAIN, R])
    return Draws(tokens, ids.view(R, DOMAIN), logprobs.view(torch.float32).view(R, DOMAIN))
