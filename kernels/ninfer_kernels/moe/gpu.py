"""The Triton route. Signatures and results are the reference's."""

from __future__ import annotations

from torch import Tensor

from . import few, many
from .layer import Experts

FEW_TOKENS = 16  # as many as the dense products take (``linear.gpu``); beyond it experts are shared, and tiles pay


def sparse(x_TN: Tensor, experts: Experts, k: int, ahead: Tensor | None = None) -> Tensor:
    """``reference.sparse`` of at least one token; rows contiguous, in the experts' type."""
    if x_TN.shape[0] <= FEW_TOKENS:
        return few.mix(x_TN, experts, k, ahead)
    return many.mix(x_TN, experts, k)
