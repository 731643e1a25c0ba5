"""The definition of the mixture, in plain torch. Legend: T tokens, E experts, k of them a token, N width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_kernels.activation.reference import swiglu
from ninfer_kernels.linear.reference import linear

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


def mix_stacked(x_TN: Tensor, shares_Tk: Tensor, ids_Tk: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """``mix`` of experts ``down(swiglu(gate_up(x)))``, each product rounded to x's dtype.

    gate_up: [E, 2I, N], the gate's rows first; down: [E, N, I].
    """
    experts = [lambda x, g=g, d=d: linear(swiglu(linear(x, g)), d) for g, d in zip(gate_up, down, strict=True)]
    return mix(x_TN, shares_Tk, ids_Tk, experts)
