"""The mixture expert by expert: each runs once, over all tokens that chose it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .reference import Expert, route

__all__ = ["mix", "route"]


def mix(x_TN: Tensor, shares_Tk: Tensor, ids_Tk: Tensor, experts: Sequence[Expert]) -> Tensor:
    """``reference.mix``: a token's sum runs in the order of expert ids, whatever else is in the step."""
    k = ids_Tk.shape[1]
    flat = ids_Tk.reshape(-1)
    order = flat.argsort(stable=True)
    tokens, shares = order // k, shares_Tk.reshape(-1)[order, None]
    counts = torch.bincount(flat, minlength=len(experts)).tolist()
    ends = list(accumulate(counts))
    out = torch.zeros(x_TN.shape, device=x_TN.device)
    for e, count in enumerate(counts):
        if count:
            mine = slice(ends[e] - count, ends[e])
            said = experts[e](x_TN.index_select(0, tokens[mine]))
            out.index_add_(0, tokens[mine], said.float() * shares[mine])
    return out
