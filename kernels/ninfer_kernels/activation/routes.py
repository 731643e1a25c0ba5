"""Which implementation gates: on a GPU Triton, on a CPU a compiled one for the few rows of a decode round and torch's
own for the rest."""

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


def swiglu(gate_up: Tensor) -> Tensor:
    """``reference.swiglu``, contiguous; on a CPU in bf16 and fp16 the gate is rounded once more before the product."""
    gpu = gpu_route(gate_up, __package__)
    if gpu is not None and gate_up.dim() == 2 and gpu.serves(gate_up):
        return gpu.swiglu(gate_up)  # type: ignore[no-any-return]
    few = gate_up.dim() == 2 and gate_up.shape[0] <= FEW_ROWS and gate_up.dtype is torch.float32
    if few and gate_up.is_cpu and gate_up.is_contiguous() and (compiled := _compiled()):
        rows, width = gate_up.shape
        out = torch.empty(rows, width // 2)
        compiled(gate_up.data_ptr(), out.data_ptr(), rows, width // 2)
        return out
    g, u = gate_up.chunk(2, dim=-1)
    return F.silu(g).mul_(u)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """``reference.sigmoid_gate``."""
    gpu = gpu_route(x, __package__)
    if gpu is not None and gpu.serves(x) and torch.broadcast_shapes(x.shape, gate.shape) == x.shape:
        return gpu.sigmoid_gate(x, gate)  # type: ignore[no-any-return]
    return torch.sigmoid(gate.float()).mul(x).to(x.dtype)


@functools.cache
def _compiled() -> Callable[..., Any] | None:
    """The compiled function, or None where numba is missing or cannot compile here."""
    try:
        from . import jit
    except Exception as error:
        logging.getLogger(__name__).warning("activation: torch route, no compiled one (%s)", type(error).__name__)
        return None
    return jit.SWIGLU
