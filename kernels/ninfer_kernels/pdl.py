"""Programmatic dependent launch: a kernel takes its place on the GPU while the one before it still finishes.

A decode round is a chain of some hundred short kernels, and the gaps between them add up. Every kernel launched with
``options`` calls ``begin`` first, on every path: one that ended without waiting would let its successor run too early.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FIRST_CAPABILITY = 9  # Hopper


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the next kernel's programs in, and wait until all that was launched before has written what it writes.

    Before this call a kernel may read what no kernel of a step writes: weights.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def begin_alone(PDL: tl.constexpr):
    """``begin`` of a kernel that writes what later ones read before their own: nobody is let in before its end."""
    if PDL:
        gdc_wait()


def options(x: Tensor) -> dict[str, Any]:
    """Launch options of a kernel with a ``PDL`` parameter, for the device ``x`` lies on."""
    if x.is_cuda and _able(x.device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@functools.cache
def _able(index: int) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(index)[0] >= FIRST_CAPABILITY
