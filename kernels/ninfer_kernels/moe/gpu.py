"""The Triton route. Signatures and results are the reference's."""

from __future__ import annotations

from torch import Tensor

from . import few, many, packed
from .layer import FEW_TOKENS, Experts, PackedExperts


def sparse(x_TN: Tensor, experts: Experts | PackedExperts, k: int) -> Tensor:
    """``reference.sparse`` of at least one token; rows contiguous, in the type of dense experts."""
    if isinstance(experts, PackedExperts):
        return packed.mix(x_TN, experts, k)
    if x_TN.shape[0] <= FEW_TOKENS:
        return few.mix(x_TN, experts, k)
    return many.mix(x_TN, experts, k)
