"""The mixture expert by expert: each runs once, over all tokens that chose it. Experts in one stack are mixed on a GPU
without the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ninfer_kernels.activation import swiglu
from ninfer_kernels.device import gpu_route
from ninfer_kernels.linear import linear

from . import reference
from .reference import Expert


def route(logits_TE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``reference.route``."""
    gpu = gpu_route(logits_TE, __package__)
    if gpu is not None and logits_TE.shape[0]:
        return gpu.route(logits_TE, k)  # type: ignore[no-any-return]
    return reference.route(logits_TE, k)


def mix_stacked(x_TN: Tensor, shares_Tk: Tensor, ids_Tk: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """``reference.mix_stacked``."""
    gpu = gpu_route(x_TN, __package__)
    if gpu is not None and x_TN.shape[0] and x_TN.stride(1) == 1:
        return gpu.mix_stacked(x_TN, shares_Tk, ids_Tk, gate_up, down)  # type: ignore[no-any-return]
    experts = [lambda x, g=g, d=d: linear(swiglu(linear(x, g)), d) for g, d in zip(gate_up, down, strict=True)]
    return mix(x_TN, shares_Tk, ids_Tk, experts)


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
