"""What a layer of Gated DeltaNet is, where the states of all layers lie, and what a provisional step leaves to fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Geometry and weights of one layer, all fp32. Legend: see ``rows``."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: Tensor  # [J, C]; tap 0 is the oldest
    a_log: Tensor  # [H]
    dt_bias: Tensor  # [H]
    norm: Tensor  # [V], of the output of every head
    eps: float

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width


class Parts:
    """The states of all layers, in the layers' order: histories [slots, J - 1, C] and matrices [slots, H, V, K]."""

    def __init__(self, histories: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        self.histories, self.states = tuple(histories), tuple(states)
        # uploaded now: a recorded step may not
        where = [[part.data_ptr() for part in parts] for parts in (self.histories, self.states)]
        self.addresses = torch.tensor(where, dtype=torch.int64, device=self.states[0].device if states else None)

    def __len__(self) -> int:
        return len(self.states)


@dataclass(kw_only=True, slots=True)
class Tape:
    """The records of a provisional step, one for each layer, and what they share."""

    records: list[Any]
    shared: Any = None

    @classmethod
    def of(cls, layers: int) -> Tape:
        return cls(records=[None] * layers)
