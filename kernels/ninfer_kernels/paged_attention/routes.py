"""Which implementation serves a step."""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.device import gpu_route

from . import cpu
from .layout import Rows, Stored

log = logging.getLogger(__name__)

WIDEST_COMPILED = 64  # tokens a row may have in a step; longer chunks are the business of matrix products


def attend(
    q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """``reference.attend`` on the fastest route there is. q: [T, H, D] any float -> [T, H, D]."""
    gpu = gpu_route(q_THD, __package__)
    if gpu is not None and gpu.serves(q_THD, keys, values):
        return gpu.attend(q_THD, keys, values, rows, scale, out_dtype)  # type: ignore[no-any-return]
    if rows.uploaded is not None:
        raise RuntimeError("attention of a recorded step needs a kernel for its head dimension and stored form")
    if keys.is_cast and values.is_cast and q_THD.device.type == "cpu" and rows.widest <= WIDEST_COMPILED:
        stored = keys.planes[0].dtype
        group = q_THD.shape[1] // keys.heads
        found = compiled(q_THD.shape[2], group, stored) if stored == values.planes[0].dtype else None
        if found is not None:
            jit, function = found
            return jit.attend(function, q_THD, keys, values, rows, scale).to(out_dtype)  # type: ignore[no-any-return]
    return cpu.attend(q_THD, keys, values, rows, scale).to(out_dtype)


@functools.cache
def compiled(head_dim: int, group: int, stored: torch.dtype) -> tuple[ModuleType, Any] | None:
    """The compiled route and its function for one shape; None where numba is missing, cannot compile here or does not
    know the stored type. Compiling takes seconds the first time, and is then kept on disk."""
    jit = _jit()
    if jit is None or stored not in jit.ELEMENTS:
        return None
    try:
        return jit, jit.kernel(head_dim, group, stored)
    except Exception as error:
        log.warning("paged attention: torch route, compiling failed (%s)", type(error).__name__)
        return None


@functools.cache
def _jit() -> ModuleType | None:
    try:
        from . import jit
    except Exception as error:
        log.warning("paged attention: torch route, no compiled one (%s)", type(error).__name__)
        return None
    return jit
