"""Tickets of programs that share out the inputs of an output (``ninfer_kernels.splits``), one set for every matrix."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_OUTPUTS = 16  # of a program that draws a ticket
ATTRIBUTE = "ninfer_tickets"


def tickets(weight: Tensor) -> Tensor:
    """Int32 zeros, one for every LEAST_OUTPUTS rows of ``weight``: made when a matrix is first asked for, the same ones
    from then on, for views of it made anew as well.

    They hang on the memory the matrix lies in: two matrices never share them, recorded rounds that read the matrix find
    them in place, and they go when it goes. One stream at a time may multiply by a matrix. Whoever records a CUDA graph
    multiplies once before, because zeros made while recording would be none until the first replay; RuntimeError says
    so.
    """
    kept: dict[tuple[int, int], Tensor] = vars(weight.untyped_storage()).setdefault(ATTRIBUTE, {})
    key = (weight.data_ptr(), weight.shape[0])
    found = kept.get(key)
    if found is None:
        if is_recorded(weight):
            raise RuntimeError(
                f"the matrix {list(weight.shape)} is multiplied for the first time while a CUDA graph is recorded; "
                "multiply by it once before"
            )
        count = -(-weight.shape[0] // LEAST_OUTPUTS)
        found = kept.setdefault(key, torch.zeros(count, dtype=torch.int32, device=weight.device))
    return found


def is_recorded(weight: Tensor) -> bool:
    """Whether launches with ``weight`` are being recorded now, and none of them runs."""
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()
