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


def groupwise(bits: int) -> Callable[[Tiles], Tensor]:
    """Numbers of ``bits`` bits stored above zero."""

    def numbers(tiles: Tiles) -> Tensor:
        halves = list(nibbles(tiles))
        if bits > 4:
            per_byte = 4 // (bits - 4)
            more = in_order(tiles.more.unflatten(-1, (4 // per_byte, TILE_ROWS, 32))).int()
            for half in range(2):
                parts = [more >> 2 * (bits - 4) * i + (bits - 4) * half & (1 << bits - 4) - 1 for i in range(per_byte)]
                halves[half] = halves[half] | torch.stack(parts, 3).flatten(2, 3) << 4
        return (torch.cat(halves, -1) - (1 << bits - 1)).float()

    return numbers


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
    "q4_g64": groupwise(4),
    "q5_g64": groupwise(5),
    "q6_g64": groupwise(6),
    "q8_g32": eights,
    "fp8_row": fp8,
    "nvfp4": nvfp4,
}
