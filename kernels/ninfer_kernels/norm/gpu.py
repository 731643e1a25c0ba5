"""The launches of the Triton route. Signatures and results are the reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import next_power_of_2

from .kernel import add_rms_norm_kernel, gated_rms_norm_kernel, rms_norm_kernel

WIDEST = 1 << 14  # elements one program holds


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take them: 2 or 3 dimensions, something in them, rows contiguous and not too long."""
    return all(x.dim() in (2, 3) and x.numel() > 0 and x.stride(-1) == 1 and x.shape[-1] <= WIDEST for x in tensors)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.rms_norm`` of x [T, D] or [T, H, D] with one weight [D] fp32."""
    return _rms_norm(x, weight, eps, 0)


def head_rms_norm(x_THD: Tensor, weight_HD: Tensor, eps: float) -> Tensor:
    """``reference.head_rms_norm``."""
    return _rms_norm(x_THD, weight_HD, eps, weight_HD.stride(0))


def _rms_norm(x: Tensor, weight: Tensor, eps: float, stride_w: int) -> Tensor:
    T, H, D = heads_of(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch_kernel(
        rms_norm_kernel, (T, H),
        x, weight, y, eps, x.stride(0), x.stride(-2), stride_w,
        H=H, D=D, BD=block(D), num_warps=warps(D), **pdl.options(x),
    )  # fmt: skip
    return y


def add_rms_norm(x_TD: Tensor, delta_TD: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.add_rms_norm``; x is written."""
    T, D = x_TD.shape
    y = torch.empty(T, D, dtype=x_TD.dtype, device=x_TD.device)
    launch_kernel(
        add_rms_norm_kernel, (T,),
        x_TD, delta_TD, weight, y, eps, x_TD.stride(0), delta_TD.stride(0), D=D, BD=block(D), num_warps=warps(D),
        **pdl.options(x_TD),
    )  # fmt: skip
    return y


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.gated_rms_norm``."""
    T, H, D = heads_of(x)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    launch_kernel(
        gated_rms_norm_kernel, (T, H),
        x, gate, weight, y, eps, x.stride(0), x.stride(-2), gate.stride(0), gate.stride(-2),
        H=H, D=D, BD=block(D), num_warps=warps(D), **pdl.options(x),
    )  # fmt: skip
    return y


def heads_of(x: Tensor) -> tuple[int, int, int]:
    """Tokens, heads and elements of [T, D] or [T, H, D]."""
    return (x.shape[0], 1, x.shape[1]) if x.dim() == 2 else (x.shape[0], x.shape[1], x.shape[2])


def block(width: int) -> int:
    return max(16, next_power_of_2(width))


def warps(width: int) -> int:
    """Eight elements a thread where the row is long, one warp where it is a head."""
    return min(max(block(width) // 256, 1), 16)
