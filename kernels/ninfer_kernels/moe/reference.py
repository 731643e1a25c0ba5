"""The definition of the mixture, in plain torch. Legend: T tokens, E experts, k of them a token, N width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_kernels.activation.reference import swiglu
from ninfer_kernels.linear.reference import linear
from ninfer_kernels.tiled_linear.reference import decode

from .layer import Experts, PackedExperts, PackedStack

Expert = Callable[[Tensor], Tensor]  # [R, N] -> [R, N]


def route(logits_TE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` most probable experts of each token and their shares, which add up to one.

    Softmax in fp32 over all experts; of equal ones the lower id comes first. Returns shares [T, k] fp32 and ids [T, k]
    int64, the most probable first.
    """
    p = torch.softmax(logits_TE.float(), dim=-1)
    value, ids = torch.sort(p, dim=-1, descending=True, stable=True)
    value = value[:, :k]
    return value / value.sum(-1, keepdim=True), ids[:, :k]


def mix(x_TN: Tensor, shares_Tk: Tensor, ids_Tk: Tensor, experts: Sequence[Expert]) -> Tensor:
    """``sum_i share_i * expert_i(x)`` of every token, [T, N] fp32; one token at a time, in the order of expert ids."""
    out = torch.zeros(x_TN.shape, device=x_TN.device)
    for t in range(x_TN.shape[0]):
        for i in ids_Tk[t].argsort().tolist():
            out[t] += shares_Tk[t, i] * experts[int(ids_Tk[t, i])](x_TN[t : t + 1])[0].float()
    return out


def sparse(x_TN: Tensor, experts: Experts | PackedExperts, k: int) -> Tensor:
    """The chosen experts ``down(swiglu(gate_up(x)))`` by their shares, and the shared one by the sigmoid of its score.

    Scores in fp32, each product of an expert rounded to x's dtype, their sum in fp32 and rounded once.
    """
    scores = x_TN.float() @ experts.scores.t()
    shares, ids = route(scores[:, :-1], k)
    pairs = zip(matrices(experts.gate_up), matrices(experts.down), strict=True)
    routed = mix(x_TN, shares, ids, [lambda x, g=g, d=d: linear(swiglu(linear(x, g)), d) for g, d in pairs])
    return (routed + torch.sigmoid(scores[:, -1:]) * said_by_all(x_TN, experts).float()).to(x_TN.dtype)


def matrices(stack: Tensor | PackedStack) -> Tensor:
    """[E, rows, columns]; packed ones as the numbers their tiles hold, in fp32."""
    return decode(stack.tiles).unflatten(0, (stack.count, -1)) if isinstance(stack, PackedStack) else stack


def said_by_all(x_TN: Tensor, experts: Experts | PackedExperts) -> Tensor:
    """What the shared expert says."""
    if isinstance(experts, PackedExperts):
        return experts.shared_down(swiglu(experts.shared_gate_up(x_TN)))
    return linear(swiglu(linear(x_TN, experts.shared_gate_up)), experts.shared_down)
