"""The launches of the Triton route."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import next_power_of_2

from .kernel import angles_kernel, rotate_kernel


def serves_angles(positions: Tensor, *tables: Tensor) -> bool:
    """Whether the kernel makes angles of these positions: there are some, and what it looks up is contiguous."""
    return positions.numel() > 0 and all(table.is_contiguous() for table in tables)


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.rotation``."""
    return _angles(positions[None], frequencies, None, 1.0)


def axis_rotation(
    positions_3T: Tensor, frequencies: Tensor, axes: Tensor, attention_factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``reference.axis_rotation``."""
    return _angles(positions_3T, frequencies, axes, attention_factor)


def _angles(positions: Tensor, frequencies: Tensor, axes: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
    T, half = positions.shape[1], frequencies.shape[0]
    cos, sin = (torch.empty(T, 1, size, dtype=torch.float32, device=positions.device) for size in (2 * half, half))
    launch_kernel(
        angles_kernel, (T,),
        positions, frequencies, axes, cos, sin, factor, *positions.stride(),
        HALF=half, BH=next_power_of_2(half), AXES=axes is not None, num_warps=1, enable_fp_fusion=False,
        **pdl.options(positions),
    )  # fmt: skip
    return cos, sin


def serves(x_THD: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel takes them: something to turn, heads and angles contiguous."""
    return x_THD.numel() > 0 and x_THD.stride(-1) == 1 and cos.is_contiguous() and sin.is_contiguous()


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``reference.rotate``, contiguous."""
    return _launch(x_THD, cos, cos, sin, 0.0, norm=False)


def norm_rotate(x_THD: Tensor, weight_HD: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """``reference.norm_rotate``, contiguous."""
    return _launch(x_THD, weight_HD.contiguous(), cos, sin, eps, norm=True)


def _launch(x_THD: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, *, norm: bool) -> Tensor:
    T, H, D = x_THD.shape
    y = torch.empty(T, H, D, dtype=x_THD.dtype, device=x_THD.device)
    launch_kernel(
        rotate_kernel, (T, H),
        x_THD, weight, cos, sin, y, eps, x_THD.stride(0), x_THD.stride(1),
        H=H, D=D, R=cos.shape[-1], BD=max(16, next_power_of_2(D)), NORM=norm, num_warps=1, **pdl.options(x_THD),
    )  # fmt: skip
    return y
