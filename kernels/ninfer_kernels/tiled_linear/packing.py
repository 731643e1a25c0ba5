"""From stored rows to tiles, on the device and some rows at a time, so that no dense copy of a matrix ever exists.

A matrix comes as the parts its rows are stored in (``quant_linear.stored_rows``): codes, high bits, scales.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ninfer_kernels.quant_linear import reference_planes

from .tiles import CHUNK, FORMATS, ORDER, TICKET_ROWS, TILE_ROWS, TileFormat, Tiles

SLAB_VALUES = 1 << 23
"""Values repacked at once; beside the stored bytes that takes about ten bytes each on the device."""

Planes = dict[str, Tensor]


def pack(name: str, stored: Sequence[Sequence[Tensor]], columns: int, device: torch.device) -> Tiles:
    """The stacked rows of some matrices, each as its parts [rows, bytes] uint8; what has a factor per row has it as
    the last part, [rows, 1] fp32."""
    form = FORMATS[name]
    rows = sum(len(parts[0]) for parts in stored)
    tiles = empty(form, rows, columns, device)
    step = max(TILE_ROWS, SLAB_VALUES // columns // TILE_ROWS * TILE_ROWS)
    for start in range(0, rows, step):
        parts = [part.to(device) for part in slab(stored, start, min(start + step, rows))]
        first, count = start // TILE_ROWS, -(-len(parts[0]) // TILE_ROWS)
        for plane, values in PACKERS[name]([whole_tiles(part) for part in parts], columns).items():
            getattr(tiles, plane)[first : first + count] = values
    return tiles


def empty(form: TileFormat, rows: int, columns: int, device: torch.device) -> Tiles:
    """Room for a matrix."""
    if rows <= 0 or columns <= 0:
        raise ValueError(f"a matrix of {rows} x {columns} has no tiles")
    tiles, chunks = -(-rows // TILE_ROWS), -(-columns // CHUNK)
    groups = CHUNK // form.group

    def room(*shape: int, dtype: torch.dtype, wanted: bool = True) -> Tensor:
        return torch.empty((tiles if wanted else 0, *shape), dtype=dtype, device=device)

    return Tiles(
        format=form,
        rows=rows,
        columns=columns,
        codes=room(chunks, groups, TILE_ROWS, form.code_bytes // groups, dtype=torch.uint8),
        more=room(chunks, TILE_ROWS * form.more_bytes, dtype=torch.uint8, wanted=form.more_bytes > 0),
        scales=room(chunks, groups, TILE_ROWS // 2, dtype=torch.int32, wanted=form.scaled),
        factors=room(TILE_ROWS, dtype=torch.float32, wanted=form.factors),
        tickets=torch.zeros(TICKET_ROWS, tiles, dtype=torch.int32, device=device),
    )


def slab(stored: Sequence[Sequence[Tensor]], start: int, end: int) -> list[Tensor]:
    """The parts of rows ``start`` to ``end`` of the stack."""
    pieces: list[list[Tensor]] = []
    for parts in stored:
        count = len(parts[0])
        if start < count and end > 0:
            pieces.append([part[max(start, 0) : min(end, count)] for part in parts])
        start, end = start - count, end - count
    return [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*pieces, strict=True)]


def whole_tiles(part: Tensor) -> Tensor:
    """Rows of zeros after the last, up to a whole tile."""
    return torch.nn.functional.pad(part, (0, 0, 0, -len(part) % TILE_ROWS))


def chunked(values_RK: Tensor, per_chunk: int, group: int) -> Tensor:
    """[R, values of a row] -> [tiles, chunks, groups, 64, group], filled up with zeros to whole chunks."""
    R, K = values_RK.shape
    padded = torch.nn.functional.pad(values_RK, (0, -K % per_chunk))
    shape = (R // TILE_ROWS, TILE_ROWS, padded.shape[1] // per_chunk, per_chunk // group, group)
    return padded.view(shape).permute(0, 2, 3, 1, 4)


def ordered(bytes_: Tensor) -> Tensor:
    """Every four bytes in ORDER."""
    return bytes_.unflatten(-1, (-1, 4))[..., list(ORDER)].flatten(-2)


def scale_words(scales: Tensor, per_chunk: int) -> Tensor:
    """binary16 of a row as bytes [R, 2 G] -> [tiles, chunks, groups, 32] int32, two rows a word."""
    words = chunked(scales.contiguous().view(torch.int16), per_chunk, 1).squeeze(-1).to(torch.int32)
    low, high = words.unflatten(-1, (2, TILE_ROWS // 2)).unbind(-2)
    return (low & 0xFFFF) | high << 16


def pack_groupwise(name: str, parts: list[Tensor], columns: int) -> Planes:
    """Numbers above zero, what does not fit in ``more``; of eight bits in two's complement."""
    bits = reference_planes.BITS[name]
    form = FORMATS[name]
    numbers = reference_planes.numbers(name, parts)[:, :columns]
    out = {"scales": scale_words(parts[-1], CHUNK // form.group)}
    if bits == 8:
        return out | {"codes": ordered(chunked(numbers.to(torch.uint8), CHUNK, form.group))}
    # padding is the number zero as well
    wide = torch.nn.functional.pad(numbers, (0, -columns % CHUNK)) + (1 << bits - 1)
    values = chunked(wide.to(torch.uint8), CHUNK, form.group)
    if bits == 4:
        first, second = values.chunk(2, -1)
        return out | {"codes": ordered(first | second << 4)}
    codes, more = HALVES[bits](*four_of_a_half(values.int()))
    return out | {"codes": as_bytes(codes), "more": as_bytes(more).flatten(2)}


def four_of_a_half(values: Tensor) -> Iterator[Tensor]:
    """[..., 64 columns] -> the first to the fourth number of each half, [..., 8 words, 2] each."""
    of_columns = values.unflatten(-1, (2, 8, 2, 2))  # first or second half of the group, word, two of four, half
    return (of_columns[..., later, :, two, :] for two in (0, 1) for later in (0, 1))


def as_bytes(halves: Tensor) -> Tensor:
    """[..., 8 words, 2] of 16 bits -> [..., 32] uint8, the low byte first."""
    return torch.stack((halves & 255, halves >> 8), -1).flatten(-3).to(torch.uint8)


def halves_of_five(*numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and, of all groups of a chunk together, what does not fit there; 16 bits each. numbers: [tiles, chunks, 4,
    64, 8, 2]."""
    a, b, c, d = numbers
    codes = a | b << 5 | c << 10 | (d >> 4) << 15
    return codes, sum_of_groups([(d[:, :, i] & 15) << 4 * i for i in range(4)])


def halves_of_six(*numbers: Tensor) -> tuple[Tensor, Tensor]:
    """As ``halves_of_five``, two groups together."""
    a, b, c, d = numbers
    codes, left = a | b << 6 | (c >> 2) << 12, d | (c & 3) << 6
    planes = [sum_of_groups([left[:, :, 2 * j + i] << 8 * i for i in range(2)]) for j in range(2)]
    return codes, torch.stack(planes, 2)


def sum_of_groups(parts: Sequence[Tensor]) -> Tensor:
    """Of bits that do not meet."""
    return functools.reduce(torch.bitwise_or, parts)


HALVES = {5: halves_of_five, 6: halves_of_six}


def pack_fp8(parts: list[Tensor], columns: int) -> Planes:
    codes, factors = parts
    return {"codes": ordered(chunked(codes, CHUNK, 64)), "factors": factors.view(-1, TILE_ROWS)}


def pack_nvfp4(parts: list[Tensor], columns: int) -> Planes:
    """Block ``b`` of 16 columns becomes bytes 8 b to 8 b + 7 of its group."""
    codes, scales, factors = parts
    values = chunked(reference_planes.unpacked(codes, 4), CHUNK, 64)
    first, second = values.unflatten(-1, (4, 2, 8)).unbind(-2)
    return {
        "codes": ordered((first | second << 4).flatten(-2)),
        "more": chunked(scales, CHUNK // 16, 4).flatten(2),
        "factors": factors.view(-1, TILE_ROWS),
    }


def groupwise(name: str) -> Callable[[list[Tensor], int], Planes]:
    return lambda parts, columns: pack_groupwise(name, parts, columns)


PACKERS: dict[str, Callable[[list[Tensor], int], Planes]] = {
    **{name: groupwise(name) for name in ("q4_g64", "q5_g64", "q6_g64", "q8_g32")},
    "fp8_row": pack_fp8,
    "nvfp4": pack_nvfp4,
}
