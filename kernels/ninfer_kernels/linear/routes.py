"""Which implementation multiplies: a kernel of ours for the few rows of a decode round on a GPU, torch for the rest."""

from __future__ import annotations

import functools
import logging
from types import ModuleType

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``reference.linear``, computed in weight's dtype. x: [T, K] any float; weight: [N, K] -> [T, N] in x's dtype."""
    if x.dtype != weight.dtype:
        return torch.mm(x.to(weight.dtype), weight.t()).to(x.dtype)
    few = x.is_cuda and 0 < x.shape[0] <= 16 and x.dtype in HALF
    if few and x.stride(1) == 1 and weight.is_contiguous() and (gpu := _gpu()) is not None:
        return gpu.linear(x, weight)  # type: ignore[no-any-return]
    return torch.mm(x, weight.t())


@functools.cache
def _gpu() -> ModuleType | None:
    try:
        from . import gpu
    except Exception as error:
        logging.getLogger(__name__).warning("linear: torch route, no Triton kernel (%s)", type(error).__name__)
        return None
    return gpu
