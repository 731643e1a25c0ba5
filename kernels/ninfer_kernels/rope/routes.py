"""Which implementation rotates: on a GPU Triton, on a CPU a compiled one for the few tokens of a decode round and
torch's own for the rest. The angles of a step are computed once and serve every layer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.device import gpu_route
from ninfer_kernels.norm import head_rms_norm

from . import reference

FEW_TOKENS = 64


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.rotation``."""
    gpu = gpu_route(positions, __package__)
    if gpu is not None and gpu.serves_angles(positions, frequencies):
        return gpu.rotation(positions, frequencies)  # type: ignore[no-any-return]
    return reference.rotation(positions, frequencies)


def axis_rotation(
    positions_3T: Tensor, frequencies: Tensor, axes: Tensor, attention_factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``reference.axis_rotation``; positions may be a view."""
    gpu = gpu_route(positions_3T, __package__)
    if gpu is not None and gpu.serves_angles(positions_3T, frequencies, axes):
        return gpu.axis_rotation(positions_3T, frequencies, axes, attention_factor)  # type: ignore[no-any-return]
    return reference.axis_rotation(positions_3T, frequencies, axes, attention_factor)


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``reference.rotate``, contiguous; x may be a view of a stacked projection."""
    gpu = gpu_route(x_THD, __package__)
    if gpu is not None and gpu.serves(x_THD, cos, sin):
        return gpu.rotate(x_THD, cos, sin)  # type: ignore[no-any-return]
    T, H, D = x_THD.shape
    R = cos.shape[-1]
    few = T <= FEW_TOKENS and x_THD.dtype is torch.float32 and x_THD.is_cpu
    plain = x_THD.stride()[1:] == (D, 1) and cos.is_contiguous() and sin.is_contiguous()
    if few and plain and (compiled := _compiled()):
        out = torch.empty(T, H, D)
        compiled(x_THD.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(), T, H, D, R, x_THD.stride(0))
        return out
    x = x_THD[..., :R].float()
    rotated = x * cos
    a, b = x.chunk(2, dim=-1)
    a_out, b_out = rotated.chunk(2, dim=-1)
    a_out.addcmul_(b, sin, value=-1)
    b_out.addcmul_(a, sin)
    if R == D:
        return rotated.to(x_THD.dtype).contiguous()
    return torch.cat((rotated.to(x_THD.dtype), x_THD[..., R:]), dim=-1)


def norm_rotate(x_THD: Tensor, weight_HD: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """``reference.norm_rotate``, contiguous; x may be a view of a stacked projection."""
    gpu = gpu_route(x_THD, __package__)
    if gpu is not None and gpu.serves(x_THD, cos, sin):
        return gpu.norm_rotate(x_THD, weight_HD, eps, cos, sin)  # type: ignore[no-any-return]
    return rotate(head_rms_norm(x_THD, weight_HD, eps), cos, sin)


@functools.cache
def _compiled() -> Callable[..., Any] | None:
    """The compiled function, or None where numba is missing or cannot compile here."""
    try:
        from . import jit
    except Exception as error:
        logging.getLogger(__name__).warning("rope: torch route, no compiled one (%s)", type(error).__name__)
        return None
    return jit.ROTATE
