"""Which tokens of a step belong to which sequence, and where each sequence's state lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64


class OnDevice(NamedTuple):
    """The rows as a kernel reads them, [B] int64 each: row ``b`` has tokens ``firsts[b]`` to ``firsts[b] + widths[b] -
    1``."""

    firsts: Tensor
    widths: Tensor
    slots: Tensor


class Chunks(NamedTuple):
    """The rows in pieces of ``CHUNK`` tokens, int64 each: piece ``n`` is ``counts[n]`` tokens of row ``rows[n]`` from
    ``firsts[n]`` on; [B] ``row_firsts``: the first piece of each row."""

    firsts: Tensor
    counts: Tensor
    rows: Tensor
    row_firsts: Tensor


class Rows:
    """Row ``b`` is tokens ``starts[b]:starts[b + 1]`` of the step; its state is slot ``slots[b]`` of every part.

    Legend of this package: T tokens of the step, B rows, W the longest row, G key heads, H value heads, K key
    dimension, V value dimension, J taps of the convolution, C its channels.

    ``uploaded``: what ``on_device`` gives, where somebody holds it already. It then counts instead of ``starts`` and
    ``slots``, which give no more than the shape: a recorded step that is replayed.
    """

    def __init__(
        self, starts: Sequence[int], slots: Sequence[int], device: torch.device, uploaded: OnDevice | None = None
    ) -> None:
        self.uploaded = uploaded
        self._kept: tuple[tuple[int, ...], Tensor] | None = None
        self.starts, self.slots, self.device = tuple(starts), tuple(slots), device
        self.lengths = tuple(end - start for start, end in pairwise(self.starts))
        self.width = max(self.lengths)
        self.equal = min(self.lengths) == self.width

    def one(self, b: int) -> Rows:
        """Row ``b`` alone; its tokens are counted from 0."""
        return Rows((0, self.lengths[b]), (self.slots[b],), self.device)

    def chosen(self, rows: Sequence[int]) -> Rows:
        """Some of the rows, for what concerns their states."""
        return Rows(range(len(rows) + 1), [self.slots[b] for b in rows], self.device)

    def pad(self, x: Tensor) -> Tensor:
        """[T, ...] -> [B, W, ...]; what follows the end of a row repeats a token of the step."""
        if self.equal:
            return x.view(len(self.slots), self.width, *x.shape[1:])
        return x[self._tokens]

    def unpad(self, x: Tensor) -> Tensor:
        """[B, W, ...] -> [T, ...]."""
        return x.flatten(0, 1) if self.equal else x[self._inside]

    def silence(self, x: Tensor) -> Tensor:
        """[B, W, ...] with zeros after the end of each row."""
        if self.equal:
            return x
        return x.masked_fill(~self._inside.view(*self._inside.shape, *[1] * (x.dim() - 2)), 0)

    def images(self, part: Tensor) -> Tensor:
        """The rows' slots of a state part, [B, ...]: a view where they lie side by side."""
        if self._consecutive:
            return part[self.slots[0] : self.slots[-1] + 1]
        return part.index_select(0, self._slot_index)

    def put(self, part: Tensor, images: Tensor) -> None:
        """Write the rows' slots; ``images`` may be the view ``images`` gave."""
        if self._consecutive:
            mine = part[self.slots[0] : self.slots[-1] + 1]
            if mine.data_ptr() != images.data_ptr():
                mine.copy_(images)
        else:
            part.index_copy_(0, self._slot_index, images.to(part.dtype))

    @cached_property
    def on_device(self) -> OnDevice:
        """First token, width and slot of each row, uploaded at most once a step."""
        if self.uploaded is not None:
            return self.uploaded
        numbers = torch.tensor([*self.starts[:-1], *self.lengths, *self.slots], dtype=torch.int64, device=self.device)
        return OnDevice(*numbers.split(len(self.slots)))

    @cached_property
    def chunks(self) -> Chunks:
        """The pieces of a step that nobody recorded, uploaded at most once."""
        pieces = [
            (start + done, min(CHUNK, length - done), b)
            for b, (start, length) in enumerate(zip(self.starts, self.lengths, strict=False))
            for done in range(0, length, CHUNK)
        ]
        firsts, counts, rows = zip(*pieces, strict=True)
        numbers = [*firsts, *counts, *rows, *(rows.index(b) for b in range(len(self.slots)))]
        uploaded = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        return Chunks(*uploaded.split([len(pieces)] * 3 + [len(self.slots)]))

    def counts(self, kept: Sequence[int] | Tensor) -> Tensor:
        """``kept`` as [B] int64 on the device; one upload serves every layer."""
        if isinstance(kept, Tensor):
            return kept
        known = tuple(kept)
        if self._kept is None or self._kept[0] != known:
            self._kept = (known, torch.tensor(known, dtype=torch.int64, device=self.device))
        return self._kept[1]

    @cached_property
    def _consecutive(self) -> bool:
        return all(after == before + 1 for before, after in pairwise(self.slots))

    @cached_property
    def _slot_index(self) -> Tensor:
        return torch.tensor(self.slots, device=self.device)

    @cached_property
    def _tokens(self) -> Tensor:
        """[B, W] index of each padded token."""
        offsets = torch.arange(self.width, device=self.device)
        first = torch.tensor(self.starts[:-1], device=self.device)[:, None]
        last = torch.tensor(self.starts[1:], device=self.device)[:, None] - 1
        return torch.minimum(first + offsets, last)

    @cached_property
    def _inside(self) -> Tensor:
        """[B, W] bool: a token of the row."""
        lengths = torch.tensor(self.lengths, device=self.device)
        return torch.arange(self.width, device=self.device) < lengths[:, None]
