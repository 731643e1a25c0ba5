"""What attention reads: the stored planes of one layer, and the rows of one step.

Legend: T tokens of the step, B rows, H query heads, G KV heads, D head dimension, L tokens a row sees, P = 64 tokens a
page, X elements a plane holds per (token, head).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PAGE_TOKENS = 64
Decode = Callable[[tuple[Tensor, ...]], Tensor]
Encode = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Stored:
    """The keys, or the values, of one layer.

    planes: each [pages, G, P, X], contiguous. decode: planes of rows [R, X] -> [R, D] fp32; encode: the way there, of
    [R, D] any float. is_cast: there is one plane, and decode only widens its elements, so a fused route may read and
    write the plane itself. device_decode, device_encode: load and return decode and encode as ``@triton.jit`` functions
    with the signatures of ``kernel.decode_cast`` and ``kernel_store.encode_cast``, for up to two planes.
    """

    planes: tuple[Tensor, ...]
    decode: Decode
    is_cast: bool = False
    device_decode: Callable[[], Any] | None = None
    encode: Encode | None = None
    device_encode: Callable[[], Any] | None = None

    @property
    def heads(self) -> int:
        return self.planes[0].shape[1]

    def pages(self, index: Tensor, length: int) -> Tensor:
        """The first ``length`` tokens of the pages in ``Rows.page_heads`` order: [G, L, D] fp32, as decoded."""
        flat = tuple(plane.view(-1, plane[0, 0].numel()).index_select(0, index) for plane in self.planes)
        rows = self.decode(
            tuple(taken.view(-1, plane.shape[-1]) for taken, plane in zip(flat, self.planes, strict=True))
        )
        return rows.view(self.heads, -1, rows.shape[-1])[:, :length]

    def slots(self, pages: Tensor, offsets: Tensor) -> Tensor:
        """The tokens at (page, offset), one by one: [L, G, D] fp32, as decoded. pages, offsets: [L] int64."""
        taken = tuple(plane[pages, :, offsets] for plane in self.planes)
        rows = self.decode(tuple(part.reshape(-1, part.shape[-1]) for part in taken))
        return rows.view(pages.numel(), self.heads, rows.shape[-1])


@dataclass(slots=True)
class Rows:
    """The rows of one step: row ``b`` has the step's tokens ``starts[b]:starts[b+1]``, the first at position
    ``frontiers[b]``, and sees its positions through ``page_table[b]``. What is derived is made once, at first use.

    ``uploaded``: what ``on_device`` gives, where somebody holds it already; it then counts instead of ``starts`` and
    ``frontiers``, which give no more than the shape (a recorded step that is replayed).
    """

    starts: tuple[int, ...]  # [B+1]
    frontiers: tuple[int, ...]  # [B]
    page_table: Tensor  # [B, N] int64; entries past a row's last page are not read
    uploaded: tuple[Tensor, Tensor, Tensor] | None = None
    _memo: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.frontiers)

    @property
    def widest(self) -> int:
        """The most tokens a row has in this step."""
        widths = (last - first for first, last in itertools.pairwise(self.starts))
        return self.derived("widest", lambda: max(widths, default=0))  # type: ignore[no-any-return]

    def length(self, row: int) -> int:
        """Tokens the row's last position sees."""
        return self.frontiers[row] + self.starts[row + 1] - self.starts[row]

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """``make()``, once per step and key."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def on_device(self) -> tuple[Tensor, Tensor, Tensor]:
        """First token, width and frontier of each row, [B] int64, where the page table is."""

        def make() -> tuple[Tensor, Tensor, Tensor]:
            widths = [last - first for first, last in itertools.pairwise(self.starts)]
            numbers = [*self.starts[:-1], *widths, *self.frontiers]
            parts = torch.tensor(numbers, dtype=torch.int64, device=self.page_table.device).split(len(self))
            return parts[0], parts[1], parts[2]

        if self.uploaded is not None:
            return self.uploaded
        return self.derived("on_device", make)  # type: ignore[no-any-return]

    def page_heads(self, row: int, heads: int) -> Tensor:
        """[G * pages] int64: the row's pages of head 0, then of head 1, ... in a plane seen as [pages * G, P * X]."""

        def make() -> Tensor:
            pages = self.page_table[row, : -(-self.length(row) // PAGE_TOKENS)]
            return (pages[None, :] * heads + torch.arange(heads, device=pages.device)[:, None]).reshape(-1)

        return self.derived(("page_heads", row, heads), make)  # type: ignore[no-any-return]

    def causal_bias(self, row: int) -> Tensor:
        """[W, L] fp32: 0 where the row's token w sees position l, else -inf."""

        def make() -> Tensor:
            width, length = self.starts[row + 1] - self.starts[row], self.length(row)
            bias = torch.full((width, length), float("-inf"), device=self.page_table.device)
            return bias.triu_(self.frontiers[row] + 1)

        return self.derived(("causal_bias", row), make)  # type: ignore[no-any-return]
