"""Which implementation normalises: on a GPU Triton, on a CPU a compiled one for the few rows of a decode round and
torch's own for the rest."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ninfer_kernels.device import gpu_route

FEW_ROWS = 64


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.rms_norm``; x: [..., H] fp32, fp16 or bf16; weight: [H] fp32."""
    gpu = gpu_route(x, __package__)
    if gpu is not None and gpu.serves(x):
        return gpu.rms_norm(x, weight, eps)  # type: ignore[no-any-return]
    if x.dtype is not weight.dtype:
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)
    rows, width = x.shape[0], x.shape[-1]
    if x.dim() == 2 and rows <= FEW_ROWS and x.is_cpu and x.is_contiguous() and (compiled := _compiled()):
        out = torch.empty(rows, width)
        compiled(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps)
        return out
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.add_rms_norm``."""
    gpu = gpu_route(x, __package__)
    if gpu is not None and x.dim() == 2 and gpu.serves(x, delta):
        return gpu.add_rms_norm(x, delta, weight, eps)  # type: ignore[no-any-return]
    return rms_norm(x.add_(delta), weight, eps)


def head_rms_norm(x_THD: Tensor, weight_HD: Tensor, eps: float) -> Tensor:
    """``reference.head_rms_norm``; x may be a view of a stacked projection."""
    gpu = gpu_route(x_THD, __package__)
    if gpu is not None and gpu.serves(x_THD, weight_HD):
        return gpu.head_rms_norm(x_THD, weight_HD, eps)  # type: ignore[no-any-return]
    normed = F.rms_norm(x_THD.float(), x_THD.shape[-1:], None, eps)
    return normed.mul_(weight_HD).to(x_THD.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``reference.gated_rms_norm``."""
    gpu = gpu_route(x, __package__)
    if gpu is not None and gpu.serves(x, gate):
        return gpu.gated_rms_norm(x, gate, weight, eps)  # type: ignore[no-any-return]
    return F.rms_norm(x.float(), weight.shape, weight, eps).mul_(F.silu(gate.float())).to(gate.dtype)


@functools.cache
def _compiled() -> Callable[..., Any] | None:
    """The compiled function, or None where numba is missing or cannot compile here."""
    try:
        from . import jit
    except Exception as error:
        logging.getLogger(__name__).warning("norm: torch route, no compiled one (%s)", type(error).__name__)
        return None
    return jit.RMS_NORM
