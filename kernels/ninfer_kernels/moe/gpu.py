"""The launches of the Triton route. Signatures and results are the reference's."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .kernel import (
    group_down_kernel,
    group_gate_up_kernel,
    pair_gate_up_kernel,
    route_kernel,
    share_kernel,
    token_down_kernel,
)

FEW_TOKENS = 64  # up to here pairs rarely share an expert, and each reads its own
GROUP = 64  # pairs of a block


def route(logits_TE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``reference.route``."""
    T, E = logits_TE.shape
    shares = torch.empty(T, k, dtype=torch.float32, device=logits_TE.device)
    ids = torch.empty(T, k, dtype=torch.int64, device=logits_TE.device)
    logits = logits_TE if logits_TE.stride(1) == 1 else logits_TE.contiguous()
    route_kernel[(T,)](
        logits, shares, ids, logits.stride(0), E=E, C=k, BE=max(16, triton.next_power_of_2(E)), num_warps=1
    )
    return shares, ids


def mix_stacked(x_TN: Tensor, shares_TC: Tensor, ids_TC: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """``reference.mix_stacked``; x's rows contiguous, the rest contiguous."""
    mix = mix_pairs if x_TN.shape[0] <= FEW_TOKENS else mix_groups
    return mix(x_TN, shares_TC, ids_TC, gate_up, down)


def mix_pairs(x_TN: Tensor, shares_TC: Tensor, ids_TC: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Every pair reads its expert: nothing is sorted."""
    (T, N), C, F = x_TN.shape, ids_TC.shape[1], down.shape[2]
    h = torch.empty(T * C, F, dtype=x_TN.dtype, device=x_TN.device)
    y = torch.empty(T, N, dtype=torch.float32, device=x_TN.device)
    BI, BN = 4, min(512, triton.next_power_of_2(N))
    pair_gate_up_kernel[(T * C, triton.cdiv(F, BI))](
        x_TN, gate_up, ids_TC, h, x_TN.stride(0), N, C=C, F=F, BI=BI, BN=BN, num_warps=4
    )
    BN, BI = 4, min(512, triton.next_power_of_2(F))
    token_down_kernel[(T, triton.cdiv(N, BN))](
        h, down, ids_TC, shares_TC, y, N, C=C, CP=triton.next_power_of_2(C), F=F, BN=BN, BI=BI, num_warps=4
    )
    return y


class Groups(NamedTuple):
    """Pairs sorted by expert and cut into blocks of one expert each, at most GROUP pairs long."""

    order: Tensor  # [P] int64: the pair at each sorted place
    experts: Tensor  # [M] int64 of each block; the number of experts where there is no block
    firsts: Tensor  # [M] sorted places
    ends: Tensor  # [M]


def groups(ids_TC: Tensor, experts: int) -> Groups:
    """Blocks of these pairs; M is the most there can be, so that nobody has to ask how many there are."""
    flat, device = ids_TC.reshape(-1), ids_TC.device
    sorted_ids, order = flat.sort(stable=True)
    every = torch.arange(experts, device=device)
    ends = torch.searchsorted(sorted_ids, every, right=True)
    starts = torch.searchsorted(sorted_ids, every)
    blocks = (ends - starts + GROUP - 1) // GROUP
    block_ends = blocks.cumsum(0)
    block = torch.arange(triton.cdiv(flat.shape[0], GROUP) + min(experts, flat.shape[0]), device=device)
    owner = torch.searchsorted(block_ends, block, right=True)
    known = owner.clamp(max=experts - 1)
    firsts = starts[known] + (block - block_ends[known] + blocks[known]) * GROUP
    return Groups(order, owner, firsts, torch.minimum(firsts + GROUP, ends[known]))


def mix_groups(x_TN: Tensor, shares_TC: Tensor, ids_TC: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The pairs of an expert read it together."""
    (T, N), C, (E, _, F) = x_TN.shape, ids_TC.shape[1], down.shape
    made = groups(ids_TC, E)
    h = torch.empty(T * C, F, dtype=x_TN.dtype, device=x_TN.device)
    said = torch.empty(T * C, N, dtype=x_TN.dtype, device=x_TN.device)
    y = torch.empty(T, N, dtype=torch.float32, device=x_TN.device)
    M, BK = made.experts.shape[0], 32 if x_TN.element_size() == 4 else 64
    group_gate_up_kernel[(M, triton.cdiv(F, 64))](
        x_TN, gate_up, *made, h, x_TN.stride(0), N, E, C=C, F=F, BM=GROUP, BI=64, BN=BK, PRECISION="ieee",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    group_down_kernel[(M, triton.cdiv(N, 64))](
        h, down, *made, said, N, E, F=F, BM=GROUP, BN=64, BI=BK, PRECISION="ieee", num_warps=4, num_stages=3
    )
    BN = min(1024, max(16, triton.next_power_of_2(N)))
    share_kernel[(T, triton.cdiv(N, BN))](
        said, ids_TC, shares_TC, y, N, C=C, CP=triton.next_power_of_2(C), BN=BN, num_warps=4
    )
    return y
