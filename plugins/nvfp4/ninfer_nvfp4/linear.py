"""The product with packed matrices. Codes and scales give exact values; the division is one per output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor
from ninfer_kernels.quant_linear import Matrix, linear

from .formats import KIND, split


class DividedLinear:
    """x: [T, K] -> [T, rows] in x's dtype, computed in fp32."""

    def __init__(self, tensors: Sequence[EncodedTensor]) -> None:
        parts = [(*split(tensor), tensor.shape) for tensor in tensors]
        self._product = linear(KIND, [Matrix(data, *shape) for data, _, shape in parts])
        self._divisors = torch.cat([divisors for _, divisors, _ in parts])
        self.rows = self._product.rows

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x.float()).div_(self._divisors).to(x.dtype)
