"""Which implementation rotates."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, float32

from ninfer_kernels.device import gpu_route

from . import reference


def rotate(x: Tensor) -> Tensor:
    """``reference.rotate``, to the bit; x: [..., D] any float -> [..., D] fp32."""
    gpu = gpu_route(x, __package__)
    if gpu is not None and gpu.serves(x):
        return gpu.rotate(x)  # type: ignore[no-any-return]
    compiled = _compiled() if x.device.type == "cpu" else None
    if compiled is None or not reference.is_supported(x.shape[-1]):
        return reference.rotate(x)
    # a copy even of fp32 input, since the compiled transform works in place
    out = x.detach().to(dtype=float32, copy=True).contiguous()
    compiled(out.view(-1, x.shape[-1]).numpy(), x.shape[-1] ** -0.5)
    return out


@functools.cache
def _compiled() -> Callable[[Any, float], None] | None:
    """The compiled transform, or None where numba is missing or cannot compile here."""
    try:
        from .jit import rotate_rows

        # compiles now, so that a failure is found here
        rotate_rows(np.ones((1, 2), np.float32), 1.0)
    except Exception as error:
        logging.getLogger(__name__).warning("hadamard: torch route, no compiled one (%s)", type(error).__name__)
        return None
    return rotate_rows
