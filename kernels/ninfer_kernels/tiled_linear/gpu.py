"""The launches."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_kernels import pdl, turns
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv
from ninfer_kernels.tuning import Blocks

from . import unpack
from .blocks import few_rows_blocks
from .kernel import decode_kernel, few_rows_kernel, rows_kernel
from .tiles import CHUNK, TILE_ROWS, TileFormat, Tiles

NARROW, HALF, FEW_ROWS = 8, 16, 32  # rows of a program
WARPS = 2  # of 32 rows of a tile each; with four the tensor cores' instruction would want numbers in shared memory


def constants(form: TileFormat, numbers: Tensor) -> dict[str, object]:
    """What kernels are compiled for; ``numbers``: a tensor of the type that numbers are made in."""
    return {
        "UNPACK": getattr(unpack, form.unpack) if isinstance(form.unpack, str) else form.unpack,
        "COLUMNS": getattr(unpack, form.columns) if isinstance(form.columns, str) else form.columns,
        "GROUP": form.group,
        "CODE_BYTES": form.code_bytes,
        "MORE_BYTES": form.more_bytes,
        "SCALED": form.scaled,
        "FACTORS": form.factors,
        "ASM": numbers.is_cuda and numbers.dtype is torch.bfloat16 and torch.version.hip is None,
    }


def linear(x: Tensor, tiles: Tiles, out: Tensor | None = None) -> Tensor:
    """x: [T, K], up to FEW_ROWS rows -> [T, N] in x's dtype. A row's sums have one order whatever the number of rows:
    blocks depend on the matrix alone."""
    chosen = few_rows_blocks(tiles.format).blocks(x.device, N=tiles.rows, K=tiles.columns)
    BT = next(rows for rows in (NARROW, HALF, FEW_ROWS) if x.shape[0] <= rows)
    return few_rows(x, tiles, BT, chosen, out)


def few_rows(x: Tensor, tiles: Tiles, BT: int, blocks: Blocks, out: Tensor | None = None) -> Tensor:
    """``splits`` programs share a tile's columns, ``num_stages`` chunks of it are in flight. The elements of a row of
    x, and of ``out``, lie side by side."""
    splits = blocks["splits"]
    (T, K), N = x.shape, tiles.rows
    if out is None:
        out = torch.empty(T, N, dtype=x.dtype, device=x.device)
    count, across = tiles.codes.shape[0], cdiv(T, BT)
    sums = torch.empty((T, count, splits, TILE_ROWS) if splits > 1 else (1,), dtype=torch.float32, device=x.device)
    turn = turns.turn(sums)
    launch_kernel(
        few_rows_kernel, (count, splits, across),
        x, tiles.codes, tiles.more, tiles.scales, tiles.factors, out, sums, tiles.tickets,
        T, N, K, x.stride(0), out.stride(0), tiles.chunks, cdiv(tiles.chunks, splits),
        BT=BT, SPLITS=splits, WHOLE=K % CHUNK == 0, STAGES=blocks["num_stages"], num_warps=WARPS,
        TURN=turn, CACHE=".cg" if turn == turns.BESIDE else "",
        **constants(tiles.format, x), **pdl.options(x),
    )  # fmt: skip
    return out


def decode(tiles: Tiles, first_tile: int, out: Tensor) -> Tensor:
    """Rows from ``first_tile`` on. out: [rows, K] contiguous, filled and given back."""
    rows, K = out.shape
    launch_kernel(
        decode_kernel, (cdiv(rows, TILE_ROWS), tiles.chunks),
        tiles.codes, tiles.more, tiles.scales, tiles.factors, out, first_tile, rows, K, tiles.chunks,
        num_warps=4, **constants(tiles.format, out),
    )  # fmt: skip
    return out


def take_rows(tiles: Tiles, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """ids: [T] int64 -> [T, K]; every id is a row of the matrix. Numbers are made one by one: threads that share a
    single row do not hold four neighbouring bytes each, which the assembly needs."""
    out = torch.empty(len(ids), tiles.columns, dtype=dtype, device=ids.device)
    if len(ids):
        launch_kernel(
            rows_kernel, (len(ids), tiles.chunks),
            ids, tiles.codes, tiles.more, tiles.scales, tiles.factors, out, tiles.columns, tiles.chunks,
            num_warps=1, **constants(tiles.format, out) | {"ASM": False}, **pdl.options(out),
        )  # fmt: skip
    return out
