"""Recurrent state: one slot per running sequence in tensors shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api import StatePart
from ninfer_core.errors import InvariantError


class StatePool:
    """``slots`` images of a model's state; ``parts[name]`` is [slots, *shape] on the device."""

    def __init__(self, layout: Sequence[StatePart], slots: int, device: torch.device) -> None:
        self.slots = slots
        self.parts: dict[str, Tensor] = {
            part.name: torch.zeros(slots, *part.shape, dtype=getattr(torch, part.dtype), device=device)
            for part in layout
        }
        self._free = list(range(slots - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    @property
    def image_bytes(self) -> int:
        return sum(part[0].numel() * part.element_size() for part in self.parts.values()) if self.slots else 0

    def take(self) -> int:
        """A zeroed slot: the state before the first token."""
        if not self._free:
            raise InvariantError("state: no slot is free although a lane was")
        slot = self._free.pop()
        for part in self.parts.values():
            part[slot].zero_()
        return slot

    def give_back(self, slot: int) -> None:
        if slot in self._free:
            raise InvariantError(f"state: slot {slot} was given back twice")
        self._free.append(slot)
