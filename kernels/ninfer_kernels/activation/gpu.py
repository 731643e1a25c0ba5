"""The launches of the Triton route. Signatures and results are the reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2

from .kernel import sigmoid_gate_kernel, swiglu_kernel

BLOCK = 1024  # elements of a program
MANY_HEADS = 4096


def serves(x: Tensor) -> bool:
    """Whether the kernels take it: 2 or 3 dimensions, something in it, rows contiguous."""
    return x.dim() in (2, 3) and x.numel() > 0 and x.stride(-1) == 1


def swiglu(gate_up_T2N: Tensor) -> Tensor:
    """``reference.swiglu`` of [T, 2N]."""
    T, N = gate_up_T2N.shape[0], gate_up_T2N.shape[1] // 2
    y = torch.empty(T, N, dtype=gate_up_T2N.dtype, device=gate_up_T2N.device)
    BN = min(BLOCK, max(16, next_power_of_2(N)))
    launch_kernel(
        swiglu_kernel, (T, cdiv(N, BN)), gate_up_T2N, y, gate_up_T2N.stride(0), N, BN=BN, num_warps=4, **pdl.options(y)
    )
    return y


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """``reference.sigmoid_gate`` where the gate spreads over x."""
    spread = gate.expand(x.shape)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    T, H, D = x.shape if x.dim() == 3 else (x.shape[0], 1, x.shape[1])
    BD = min(BLOCK, max(16, next_power_of_2(D)))
    # of many tokens some heads at once: a program of one warp costs more than it does
    BH = min(next_power_of_2(H), 2 * BLOCK // BD) if T * H >= MANY_HEADS else 1
    launch_kernel(
        sigmoid_gate_kernel, (T, cdiv(H, BH), cdiv(D, BD)),
        x, spread, y, x.stride(0), x.stride(-2), spread.stride(0), spread.stride(-2), spread.stride(-1),
        H=H, D=D, BH=BH, BD=BD, num_warps=max(1, BH * BD // 512 if BH > 1 else BD // 256), **pdl.options(y),
    )  # fmt: skip
    return y
