"""Rows stored as elements of one torch dtype."""

from __future__ import annotations

import torch
from torch import Tensor


class CastCodec:
    """``encode`` rounds to the nearest element, ties to even; ``decode`` widens, exactly."""

    is_cast = True

    def __init__(self, dtype: str) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """[R, D] any float -> one plane [R, D]."""
        return (rows.to(self.dtype),)

    def decode(self, planes: tuple[Tensor, ...]) -> Tensor:
        """-> [R, D] fp32."""
        return planes[0].float()
