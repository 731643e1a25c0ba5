"""The launches for a few tokens: three, on the plain cores, as fast as the experts can be read."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2
from ninfer_kernels.tuning import Blocks

from .choose_kernel import few_choose_kernel
from .few_blocks import CHOOSE, DOWN, GATE_UP, padded
from .few_kernel import few_down_kernel, few_gate_up_kernel
from .layer import Experts, Scores


def choose(x_TN: Tensor, experts: Scores, k: int, blocks: Blocks | None = None) -> tuple[Tensor, Tensor]:
    """Shares fp32 and ids int32 of each token's slots, [T, k + 1]: its experts in the order of their ids, and the
    shared one."""
    (T, N), E = x_TN.shape, experts.count
    blocks = blocks or CHOOSE.blocks(x_TN.device, N=N, E=E, C=k)
    # one piece of memory: ``gate_up`` writes while scores are still read, so these live as long as the shares
    first = -(-T * (k + 1) // 4) * 4
    held = torch.empty(first + T * (E + 1), dtype=torch.float32, device=x_TN.device)
    shares, logits = held[: T * (k + 1)].view(T, k + 1), held[first:]
    ids = torch.empty(T, k + 1, dtype=torch.int32, device=x_TN.device)
    launch_kernel(
        few_choose_kernel, (cdiv(E + 1, blocks["BE"]), T),
        x_TN, experts.scores, logits, experts.arrived, shares, ids, x_TN.stride(0),
        N=N, E=E, C=k, CP=next_power_of_2(k), EP=padded(E), BN=padded(N), **blocks, **pdl.options(x_TN),
    )  # fmt: skip
    return shares, ids


def gate_up(x_TN: Tensor, experts: Experts, ids: Tensor, blocks: Blocks | None = None) -> Tensor:
    """The inner row of every slot, [T * S, the wider of the two]."""
    (T, N), S, (F, shared) = x_TN.shape, ids.shape[1], inner(experts)
    blocks = blocks or GATE_UP.blocks(x_TN.device, N=N, F=F, F_SHARED=shared, C=S - 1)
    h = torch.empty(T * S, max(F, shared), dtype=x_TN.dtype, device=x_TN.device)
    programs = cdiv(shared, blocks["BI"]) + cdiv(F, blocks["BI"]) * (S - 1)
    launch_kernel(
        few_gate_up_kernel, (T * programs,),
        x_TN, experts.gate_up, experts.shared_gate_up, ids, h,
        x_TN.stride(0), h.shape[1], T, N=N, F=F, F_SHARED=shared, C=S - 1,
        STAGES=blocks["num_stages"], **blocks, **pdl.options(x_TN),
    )  # fmt: skip
    return h


def down(h: Tensor, experts: Experts, shares: Tensor, ids: Tensor, blocks: Blocks | None = None) -> Tensor:
    """The shares of what every slot says, [T, N]."""
    (T, S), N, (F, shared) = ids.shape, experts.down.shape[1], inner(experts)
    blocks = blocks or DOWN.blocks(h.device, N=N, F=F, F_SHARED=shared, C=S - 1)
    y = torch.empty(T, N, dtype=h.dtype, device=h.device)
    launch_kernel(
        few_down_kernel, (T, cdiv(N, blocks["BN"])),
        h, experts.down, experts.shared_down, ids, shares, y, h.stride(0),
        N=N, F=F, F_SHARED=shared, C=S - 1, CP=next_power_of_2(S - 1),
        **blocks, **pdl.options(h),
    )  # fmt: skip
    return y


def inner(experts: Experts) -> tuple[int, int]:
    """Width of an expert, and of the shared one."""
    return experts.down.shape[2], experts.shared_down.shape[1]


def mix(x_TN: Tensor, experts: Experts, k: int) -> Tensor:
    """``reference.sparse`` for a few tokens; a token's bits do not depend on how many there are."""
    shares, ids = choose(x_TN, experts, k)
    return down(gate_up(x_TN, experts, ids), experts, shares, ids)
