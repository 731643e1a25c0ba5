"""The definition: the numbers tiles hold, in plain torch and fp32, found by the layout alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_kernels.quant_linear.reference_planes import E2M1, e4m3

from .tiles import CHUNK, ORDER, TILE_ROWS, Tiles


def decode(tiles: Tiles) -> Tensor:
    """[rows, columns] fp32."""
    form = tiles.format
    numbers = NUMBERS[form.name](tiles)  # [tiles, chunks, groups, TILE, group]
    if form.scaled:
        words = tiles.scales
        pairs = torch.stack((words & 0xFFFF, words >> 16 & 0xFFFF), -2).to(torch.int16).view(torch.float16)
        numbers = numbers * pairs.flatten(-2).float().unsqueeze(-1)
    rows = numbers.permute(0, 3, 1, 2, 4).reshape(-1, tiles.chunks * CHUNK)
    if form.factors:
        rows = rows * tiles.factors.view(-1, 1)
    return rows[: tiles.rows, : tiles.columns].contiguous()


def linear(x: Tensor, tiles: Tiles) -> Tensor:
    """``x @ W.T`` summed in fp32, rounded once to x's dtype. x: [T, K] -> [T, N]."""
    return (x.float() @ decode(tiles).T).to(x.dtype)


def in_order(plane: Tensor) -> Tensor:
    """Bytes in the order of their columns."""
    return plane.unflatten(-1, (-1, 4))[..., list(ORDER)].flatten(-2)


def nibbles(tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Low and high, [tiles, chunks, groups, TILE, 32] int32."""
    codes = in_order(tiles.codes).int()
    return codes & 15, codes >> 4


def fours(tiles: Tiles) -> Tensor:
    return (torch.cat(nibbles(tiles), -1) - 8).float()


def halves(plane: Tensor) -> Tensor:
    """[..., 32] bytes -> [..., 8 words, 2] int32 of 16 bits."""
    pairs = plane.int().unflatten(-1, (8, 2, 2))
    return pairs[..., 0] | pairs[..., 1] << 8


def in_columns(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The four numbers of each half -> [..., 64 columns]."""
    return torch.cat([torch.stack(pair, -2).flatten(-3) for pair in ((a, c), (b, d))], -1)


def fives(tiles: Tiles) -> Tensor:
    codes, more = halves(tiles.codes), halves(tiles.more.unflatten(-1, (1, TILE_ROWS, 32)))
    low = torch.cat([more >> 4 * i & 15 for i in range(4)], 2)
    return (in_columns(codes & 31, codes >> 5 & 31, codes >> 10 & 31, low | codes >> 15 << 4) - 16).float()


def sixes(tiles: Tiles) -> Tensor:
    codes, more = halves(tiles.codes), halves(tiles.more.unflatten(-1, (2, TILE_ROWS, 32)))
    left = torch.stack([more >> 8 * i & 255 for i in range(2)], 3).flatten(2, 3)
    return (in_columns(codes & 63, codes >> 6 & 63, codes >> 12 << 2 | left >> 6, left & 63) - 32).float()


def eights(tiles: Tiles) -> Tensor:
    return in_order(tiles.codes).view(torch.int8).float()


def fp8(tiles: Tiles) -> Tensor:
    return e4m3(in_order(tiles.codes))


def nvfp4(tiles: Tiles) -> Tensor:
    """With their scales, times 2 ** -8."""
    table = torch.tensor(E2M1, device=tiles.codes.device)
    scales = e4m3(tiles.more).unflatten(-1, (-1, TILE_ROWS, 4))
    halves = [table[half].unflatten(-1, (4, 8)) for half in nibbles(tiles)]
    return (torch.stack(halves, -2).flatten(-2) * scales.unsqueeze(-1)).flatten(-2) * 2**-8


NUMBERS: dict[str, Callable[[Tiles], Tensor]] = {
    "q4_g64": fours,
    "q5_g64": fives,
    "q6_g64": sixes,
    "q8_g32": eights,
    "fp8_row": fp8,
    "nvfp4": nvfp4,
}
