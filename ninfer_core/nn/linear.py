"""Matrix products over stored weights. Every operation maps [T, K] to [T, N] in the dtype of its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api.nn import Linear
from ninfer_kernels.linear import linear


class DenseLinear:
    """``x @ W.T`` with W held densely in fp32, bf16 or fp16; the product is computed in W's dtype."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [N, K]."""
        self.weight = weight
        self.rows = weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = linear(x, self.weight)
        return product


class StackedLinear:
    """Operations over one input, their outputs side by side: rows of several formats in one stack."""

    def __init__(self, operations: Sequence[Linear]) -> None:
        self.operations = tuple(operations)
        self.rows = sum(operation.rows for operation in self.operations)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([operation(x) for operation in self.operations], dim=-1)
