"""Matrix products over stored weights. Every operation maps [T, K] to [T, N] in the dtype of its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api.nn import Linear
from ninfer_kernels.linear import linear
from ninfer_kernels.turns import together


class DenseLinear:
    """``x @ W.T`` with W held densely in fp32, bf16 or fp16; the product is computed in W's dtype."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [N, K]."""
        self.weight = weight
        self.rows = weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = linear(x, self.weight)
        return product

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """The product written to ``out`` [T, N], whose rows may be parts of longer ones."""
        product: Tensor = linear(x, self.weight, out)
        return product


class StackedLinear:
    """Operations over one input, their outputs side by side: rows of several formats in one stack."""

    def __init__(self, operations: Sequence[Linear]) -> None:
        self.operations = tuple(operations)
        self.rows = sum(operation.rows for operation in self.operations)
        self._writers = [getattr(operation, "into", None) for operation in self.operations]

    def __call__(self, x: Tensor) -> Tensor:
        if None in self._writers:
            return torch.cat([operation(x) for operation in self.operations], dim=-1)
        return self.into(x, torch.empty(x.shape[0], self.rows, dtype=x.dtype, device=x.device))

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """The product written to ``out``. The parts need nothing of each other and may run side by side."""
        first = 0
        with together():
            for operation, writer in zip(self.operations, self._writers, strict=True):
                part = out[:, first : first + operation.rows]
                if writer is None:
                    part.copy_(operation(x))
                else:
                    writer(x, part)
                first += operation.rows
        return out

    def parted(self, rows: int) -> tuple[Linear, Linear] | None:
        """Two operations, the first of so many rows; None where that ends within an operation, or with the last."""
        first = 0
        for i, operation in enumerate(self.operations):
            if first == rows and i:
                return _stacked(self.operations[:i]), _stacked(self.operations[i:])
            first += operation.rows
        return None


def _stacked(operations: Sequence[Linear]) -> Linear:
    return operations[0] if len(operations) == 1 else StackedLinear(operations)
