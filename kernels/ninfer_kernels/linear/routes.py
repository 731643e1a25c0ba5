"""Which implementation multiplies: a kernel of ours for the few rows of a decode round on a GPU, torch for the rest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_kernels.device import gpu_route

HALF = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """``reference.linear``, computed in weight's dtype. x: [T, K] any float; weight: [N, K] -> [T, N] in x's dtype, in
    ``out`` if given, whose rows may be parts of longer ones."""
    if x.dtype != weight.dtype:
        return _put(torch.mm(x.to(weight.dtype), weight.t()), x, out)
    few = x.is_cuda and 0 < x.shape[0] <= 16 and x.dtype in HALF
    if few and x.stride(1) == 1 and weight.is_contiguous() and (gpu := gpu_route(x, __package__)) is not None:
        return gpu.linear(x, weight, out)  # type: ignore[no-any-return]
    return torch.mm(x, weight.t(), out=out)


def neighbour(device: torch.device) -> Callable[[], object]:
    """A launch that reads memory as most of those of a round do, for a search to time others beside. Only where
    kernels can be launched."""
    from . import gpu  # Triton is for GPUs

    return gpu.neighbour(device)


def _put(product: Tensor, x: Tensor, out: Tensor | None) -> Tensor:
    return product.to(x.dtype) if out is None else out.copy_(product)
