"""Matrices with planes as rows of parts and back, so that encoders, decoders and row selection need no layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .planes import SCALE_TILE_ROWS, layout, up


def plane(data: Tensor, offset: int, rows: int, stride: int, width: int) -> Tensor:
    """``width`` bytes of each row of one plane: [rows, width] uint8, a view."""
    return data.as_strided((rows, width), (stride, 1), data.storage_offset() + offset)


def widths(format: str, columns: int) -> tuple[int, ...]:
    """Bytes a row has in each plane: codes, high bits where there are any, scales."""
    if format == "nvfp4":
        return columns // 2, columns // 16
    if format.startswith("fp8_row"):
        return columns, 2
    return tuple(place.stride for place in layout(format, 1, columns)[0])


def plane_views(format: str, data: Tensor, rows: int, columns: int) -> list[Tensor]:
    """Each plane as [rows, bytes], views; nvfp4's tiles of scales, which have no rows, are left out."""
    places, _ = layout(format, rows, columns)
    if format == "nvfp4":
        places = places[:1]
    return [
        plane(data, place.offset, rows, place.stride, width)
        for place, width in zip(places, widths(format, columns), strict=False)
    ]


def split(format: str, data: Tensor, rows: int, columns: int) -> list[Tensor]:
    """The parts of every row, [rows, bytes] uint8 each: views, but for nvfp4's scales, which come in column order."""
    places, size = layout(format, rows, columns)
    if data.numel() < size:
        raise ValueError(f"{data.numel()} bytes are not {rows} x {columns} in {format}")
    parts = plane_views(format, data, rows, columns)
    if format == "nvfp4":
        tiles = data[places[1].offset : size]
        parts.append(tiles_to_rows(tiles, up(rows, SCALE_TILE_ROWS), columns)[:rows])
    return parts


def fill(format: str, rows: int, columns: int, blocks: Iterable[Sequence[Tensor]]) -> Tensor:
    """The stored matrix of rows that come some at a time, each block as its parts; gaps are zero.

    ValueError when the blocks do not hold exactly ``rows`` rows.
    """
    places, size = layout(format, rows, columns)
    data = torch.zeros(size, dtype=torch.uint8)
    targets = plane_views(format, data, rows, columns)
    if format == "nvfp4":
        # tiles of 128 rows are formed when all rows are there
        targets.append(torch.zeros(up(rows, SCALE_TILE_ROWS), columns // 16, dtype=torch.uint8))
    first = 0
    for parts in blocks:
        count = len(parts[0])
        if first + count > rows:
            raise ValueError(f"more than {rows} rows")
        for target, part in zip(targets, parts, strict=True):
            target[first : first + count] = part
        first += count
    if first != rows:
        raise ValueError(f"{first} rows instead of {rows}")
    if format == "nvfp4":
        data[places[1].offset :] = rows_to_tiles(targets[1])
    return data


def take(format: str, data: Tensor, rows: int, columns: int, wanted: Sequence[int]) -> Tensor:
    """The stored matrix of some rows in that order. IndexError for a row that is missing."""
    if not wanted or min(wanted) < 0 or max(wanted) >= rows:
        raise IndexError(f"rows are 0..{rows - 1}")
    parts = split(format, data, rows, columns)
    first = wanted[0]
    if all(row == first + i for i, row in enumerate(wanted)):
        taken = [part[first : first + len(wanted)] for part in parts]
    else:
        index = torch.as_tensor(wanted, dtype=torch.int64)
        taken = [part.index_select(0, index) for part in parts]
    return fill(format, len(wanted), columns, [taken])


def tiles_to_rows(tiles: Tensor, rows: int, columns: int) -> Tensor:
    """Scales as stored, in tiles of 128 rows by 4 groups -> [rows, K / 16]; ``rows`` is a whole number of tiles."""
    shape = (rows // SCALE_TILE_ROWS, columns // 64, 32, 4, 4)
    return tiles.reshape(shape).permute(0, 3, 2, 1, 4).reshape(rows, columns // 16)


def rows_to_tiles(scales: Tensor) -> Tensor:
    """The inverse of ``tiles_to_rows``: [rows, K / 16] -> flat, as stored."""
    rows, groups = scales.shape
    return scales.reshape(rows // SCALE_TILE_ROWS, 4, 32, groups // 4, 4).permute(0, 3, 2, 1, 4).reshape(-1)
