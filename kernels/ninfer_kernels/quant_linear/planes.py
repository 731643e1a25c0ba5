"""Where the blocks of a matrix lie: contiguous rows, or planes of codes and scales (``spec/artifact.md`` §12).

A plane holds one part of every block. In row ``r`` block ``i``'s part is at ``offset + r * stride + i * step``, with
the steps of ``Block``; the scales of ``nvfp4`` alone are laid out in tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import BLOCKS, Block, row_bytes

SCALE_TILE_ROWS = 128  # rows that share a tile of nvfp4 scales
SCALE_TILE_BYTES = 512  # of scales: 128 rows by 4 groups of 16 columns
ROW_SPLIT_COLUMNS = 128  # what rows of ``row_split_k128_v1`` are padded to
PLANE_ALIGNMENT = 256  # bytes

PLANES: dict[str, Block] = {
    "q2_g64": Block(64, 16, (2,)),
    "t2_g128": Block(128, 32, (2,)),
    "q4_g64": Block(64, 32, (2,)),
    "q5_g64": Block(64, 32, (8, 2)),
    "q6_g64": Block(64, 32, (16, 2)),
    "q8_g32": Block(32, 32, (2,)),
    "fp8_row_bf16": Block(32, 32, (0,)),
    "fp8_row_fp16": Block(32, 32, (0,)),
    "nvfp4": Block(64, 32, (SCALE_TILE_BYTES,)),
}
"""What a block holds in each plane; the row formats have one scale a row."""

FORMATS = {**BLOCKS, **PLANES}


@dataclass(frozen=True, slots=True)
class Plane:
    offset: int  # bytes from the start of the matrix
    stride: int  # bytes from one row to the next


def up(value: int, to: int) -> int:
    """``value`` rounded up to a multiple of ``to``."""
    return -(-value // to) * to


def layout(format: str, rows: int, columns: int) -> tuple[tuple[Plane, ...], int]:
    """The planes of a matrix and its size in bytes; ValueError for a row that is no whole number of blocks."""
    if format in BLOCKS:
        size = row_bytes(format, columns)
        return (Plane(0, size),), rows * size
    if format == "fp8_row_bf16":
        scales = up(rows * columns, PLANE_ALIGNMENT)
        return (Plane(0, columns), Plane(scales, 2)), scales + 2 * rows
    if format == "fp8_row_fp16":
        return (Plane(0, columns + 2), Plane(columns, columns + 2)), rows * (columns + 2)
    if format == "nvfp4":
        return nvfp4_layout(rows, columns)
    return row_split_layout(PLANES[format], rows, columns)


def nvfp4_layout(rows: int, columns: int) -> tuple[tuple[Plane, ...], int]:
    """Codes, and scales in tiles of 128 rows; a last tile that is not full is stored whole. Divisors follow."""
    if columns % 64:
        raise ValueError(f"a row of {columns} values is not a whole number of nvfp4 blocks of 64")
    stored = up(rows, SCALE_TILE_ROWS)
    scales = up(stored * columns // 2, PLANE_ALIGNMENT)
    stride = columns // 64 * SCALE_TILE_BYTES  # from one row of tiles to the next
    return (Plane(0, columns // 2), Plane(scales, stride)), scales + stored * columns // 16


def row_split_layout(block: Block, rows: int, columns: int) -> tuple[tuple[Plane, ...], int]:
    """Codes, high bits where there are any, scales: each plane in (row, group) order."""
    groups = up(columns, ROW_SPLIT_COLUMNS) // block.values
    planes, offset = [], 0
    for step in (block.bytes, *block.others):
        planes.append(Plane(offset, groups * step))
        size = rows * groups * step
        offset += up(size, PLANE_ALIGNMENT)
    return tuple(planes), planes[-1].offset + size


def blocks_of(format: str, columns: int) -> int:
    """Blocks that hold the values of one row; padding beyond them is never read."""
    return -(-columns // FORMATS[format].values)


def why_not_blocks(format: str, columns: int) -> str | None:
    """None where a row can be read block by block."""
    values = FORMATS[format].values
    if format.startswith("fp8_row") and columns % values:
        return f"a row of {columns} values is not a whole number of blocks of {values}"
    return None
