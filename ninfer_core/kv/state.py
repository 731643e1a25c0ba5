"""Recurrent state: one slot per running sequence in tensors shared by all of them, and whole images of a slot.

An image is the slot's parts in the order of the layout, each beginning at a multiple of 256 bytes
(``spec/kv-dtypes.md`` §7). It holds exact bytes: a slot filled from an image continues as the one it was taken from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.api import StatePart
from ninfer_core.errors import InvariantError

IMAGE_ALIGNMENT = 256  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Where one part lies in an image."""

    name: str
    offset: int
    bytes: int


def image_regions(layout: Sequence[StatePart]) -> tuple[Region, ...]:
    """The regions of an image, in order."""
    out, offset = [], 0
    for part in layout:
        size = math.prod(part.shape) * getattr(torch, part.dtype).itemsize
        out.append(Region(name=part.name, offset=offset, bytes=size))
        offset += aligned(size)
    return tuple(out)


def image_size(layout: Sequence[StatePart]) -> int:
    """Bytes of one image, padding included."""
    regions = image_regions(layout)
    return aligned(regions[-1].offset + regions[-1].bytes) if regions else 0


def aligned(size: int) -> int:
    return -(-size // IMAGE_ALIGNMENT) * IMAGE_ALIGNMENT


class StatePool:
    """``slots`` images of a model's state; ``parts[name]`` is [slots, *shape] on the device."""

    def __init__(self, layout: Sequence[StatePart], slots: int, device: torch.device) -> None:
        self.slots = slots
        self.layout = tuple(layout)
        self.regions = image_regions(layout)
        self.image_bytes = image_size(layout)
        self.parts: dict[str, Tensor] = {
            part.name: torch.zeros(slots, *part.shape, dtype=getattr(torch, part.dtype), device=device)
            for part in layout
        }
        self._free = list(range(slots - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A zeroed slot: the state before the first token."""
        slot = self.take_unset()
        for part in self.parts.values():
            part[slot].zero_()
        return slot

    def take_unset(self) -> int:
        """A slot with any content, for one that is filled at once by ``copy`` or ``from_host``."""
        if not self._free:
            raise InvariantError("state: no slot is free although a lane was")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        if slot in self._free:
            raise InvariantError(f"state: slot {slot} was given back twice")
        self._check(slot)
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        """Fork: ``target`` becomes what ``source`` is; queued on the device's current stream."""
        self._check(source, target)
        for part in self.parts.values():
            part[target].copy_(part[source], non_blocking=True)

    def to_host(self, slot: int, out: Tensor | None = None) -> Tensor:
        """Snapshot: the slot as one image, [image_bytes] uint8 on the host.

        ``out``: a buffer to write to. With a pinned one the copies are only queued on the current stream; whoever reads
        it waits for them first.
        """
        self._check(slot)
        image = torch.zeros(self.image_bytes, dtype=torch.uint8) if out is None else out
        for region, ours, theirs in self._regions_of(slot, image):
            if region.bytes:
                theirs.copy_(ours, non_blocking=True)
        if out is None and self._on_device:
            torch.cuda.current_stream(self._device).synchronize()
        return image

    def from_host(self, slot: int, image: Tensor) -> None:
        """Restore: the slot becomes what the image says; queued on the current stream as ``to_host`` is."""
        self._check(slot)
        for region, ours, theirs in self._regions_of(slot, image):
            if region.bytes:
                ours.copy_(theirs, non_blocking=True)

    def _regions_of(self, slot: int, image: Tensor) -> list[tuple[Region, Tensor, Tensor]]:
        """Each region with the bytes of the slot's part and those of the image."""
        if image.dtype is not torch.uint8 or image.dim() != 1 or image.numel() != self.image_bytes:
            raise InvariantError(
                f"state: an image is [{self.image_bytes}] uint8, not {list(image.shape)} {image.dtype}"
            )
        return [
            (
                region,
                self.parts[region.name][slot].reshape(-1).view(torch.uint8),
                image[region.offset : region.offset + region.bytes],
            )
            for region in self.regions
        ]

    def _check(self, *slots: int) -> None:
        for slot in slots:
            if not 0 <= slot < self.slots:
                raise InvariantError(f"state: there is no slot {slot} among {self.slots}")

    @property
    def _device(self) -> torch.device:
        return next(iter(self.parts.values())).device

    @property
    def _on_device(self) -> bool:
        return bool(self.parts) and self._device.type == "cuda"
