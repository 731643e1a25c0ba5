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
from .layer import Experts, PackedExperts
from .reference import Expert


def route(logits_TE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``reference.route``."""
    return reference.route(logits_TE, k)


def sparse(x_TN: Tensor, experts: Experts | PackedExperts, k: int) -> Tensor:
    """``reference.sparse``, computed in the experts' type, with packed ones on a GPU in bf16."""
    if isinstance(experts, PackedExperts):
        return _packed(x_TN, experts, k)
    x = x_TN.to(experts.gate_up.dtype)
    gpu = gpu_route(x, __package__)
    if gpu is not None and x.shape[0] and x.stride(1) == 1:
        return gpu.sparse(x, experts, k).to(x_TN.dtype)  # type: ignore[no-any-return]
    scores = x.float() @ experts.scores.t()
    pairs = zip(experts.gate_up, experts.down, strict=True)
    each = [lambda x, g=g, d=d: linear(swiglu(linear(x, g)), d) for g, d in pairs]
    routed = mix(x, *route(scores[:, :-1], k), each)
    shared = linear(swiglu(linear(x, experts.shared_gate_up)), experts.shared_down)
    return (routed + torch.sigmoid(scores[:, -1:]) * shared.float()).to(x_TN.dtype)


def _packed(x_TN: Tensor, experts: PackedExperts, k: int) -> Tensor:
    gpu = gpu_route(x_TN, __package__)
    if gpu is None or not x_TN.shape[0]:
        return reference.sparse(x_TN, experts, k)
    x = x_TN if x_TN.stride(1) == 1 else x_TN.contiguous()
    return gpu.sparse(x, experts, k).to(x.dtype)  # type: ignore[no-any-return]


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
