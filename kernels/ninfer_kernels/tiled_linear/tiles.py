"""Stored matrices in tiles, the form GPU kernels read: packed bytes, laid out once when a matrix is loaded.

A tile is 64 rows, a chunk of it 256 columns, a group of it the columns one scale or one product covers. ``codes`` is
[tiles, chunks, groups, 64, bytes of a group]; bytes stand in the order 0, 2, 1, 3 of every four, which is how registers
of two bf16 come out in order. ``more`` is what a format keeps per chunk beside that: high bits, scales of its own.
``scales`` is [tiles, chunks, groups, 32] int32, each word the binary16 scales of rows ``r`` and ``r + 32``.

Codes of five and six bits lie in 16 bits at a time instead, so that few instructions take them apart: half ``h`` of
word ``w`` of a group has those of columns ``4 w + h``, ``+ 32``, ``+ 2`` and ``+ 34``, the first in the lowest bits, as
far as they go. The same half of a word of ``more`` has the rest for several groups. Of five bits: the last code's lower
four, group ``i`` at bit ``4 i``, its highest being the highest bit of the codes' half. Of six bits: the last code and,
above it, the lower two of the third, group ``i`` at bit ``8 (i % 2)`` of plane ``i // 2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

TILE_ROWS = 64
CHUNK = 256  # columns
TICKET_ROWS = 8  # blocks of activation rows of one call, at most
ORDER = (0, 2, 1, 3)  # of bytes in a register; its own inverse


@dataclass(frozen=True, slots=True)
class TileFormat:
    """How a format lies in tiles.

    ``unpack`` and ``columns`` are functions of ``unpack.py`` by name, or Triton functions like them.
    """

    name: str
    group: int  # columns
    code_bytes: int  # of a row in a chunk
    more_bytes: int
    scaled: bool  # a binary16 scale per row and group
    factors: bool  # an fp32 factor per row
    unpack: str | Any
    columns: str | Any = "in_order"  # the columns of a group in the order of what ``unpack`` gives


@dataclass(frozen=True, slots=True)
class Tiles:
    """A matrix of ``rows`` x ``columns`` on a device; what a format does not have is empty."""

    format: TileFormat
    rows: int
    columns: int
    codes: Tensor
    more: Tensor
    scales: Tensor
    factors: Tensor
    tickets: Tensor  # [TICKET_ROWS, tiles] int32 zeros: how many programs are done with a tile

    @property
    def chunks(self) -> int:
        return -(-self.columns // CHUNK)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.more, self.scales, self.factors))


FORMATS = {
    "q4_g64": TileFormat("q4_g64", 64, 128, 0, True, False, "q4"),
    "q5_g64": TileFormat("q5_g64", 64, 128, 32, True, False, "q5"),
    "q6_g64": TileFormat("q6_g64", 64, 128, 64, True, False, "q6"),
    "q8_g32": TileFormat("q8_g32", 32, 256, 0, True, False, "q8"),
    "fp8_row": TileFormat("fp8_row", 64, 256, 0, False, True, "fp8"),
    "nvfp4": TileFormat("nvfp4", 64, 128, 16, False, True, "nvfp4", "by_scale"),
}
"""The formats of ours, by the names of ``quant_linear`` (row FP8 by one for both scales)."""
