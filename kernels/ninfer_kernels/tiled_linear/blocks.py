"""How the columns of a tile are shared out, for each format (docs/performance.md)."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from ninfer_kernels.tuning import Blocks, Facts, Shape, Tunable, stages_that_fit

from .packing import empty
from .tiles import CHUNK, FORMATS, TILE_ROWS, TileFormat, Tiles

FEW_ROWS = 32
SEARCHED_ROWS = 1 << 16  # of a taller matrix a search multiplies this many rows
PROGRAMS_EACH = 8  # of a multiprocessor, at least

TALL = 1 << 15
ANY = 1 << 40
FIVE_OR_SIX_BITS = ((8191, 12, 2), (TALL - 1, 6, 2), (ANY, 3, 3))
H200 = {
    "q4_g64": ((6143, 8, 2), (8191, 12, 2), (TALL - 1, 4, 3), (ANY, 3, 3)),
    "q5_g64": FIVE_OR_SIX_BITS,
    "q6_g64": FIVE_OR_SIX_BITS,
    "q8_g32": ((TALL - 1, 8, 2), (ANY, 2, 3)),
    "fp8_row": ((TALL - 1, 8, 3), (ANY, 2, 3)),
    "nvfp4": ((TALL - 1, 16, 3), (ANY, 8, 2)),
}
"""Outputs up to, programs that share a tile, chunks in flight."""


@functools.cache
def few_rows_blocks(form: TileFormat) -> Tunable:
    """Of products with a few rows: programs that share a tile, chunks in flight."""

    def fitted(splits: int, stages: int, facts: Facts) -> Blocks:
        return {"splits": splits, "num_stages": stages_that_fit(stages, stage_bytes(form), 0, facts)}

    def default(shape: Shape, facts: Facts) -> Blocks:
        """As many programs as keep the GPU busy, two chunks each at least."""
        tiles, chunks = -(-shape["N"] // TILE_ROWS), -(-shape["K"] // CHUNK)
        return fitted(max(1, min(chunks // 2, PROGRAMS_EACH * facts.multiprocessors // tiles)), 3, facts)

    def h200(shape: Shape, facts: Facts) -> Blocks:
        """The fastest of a search at the shapes of the 27B model (docs/performance.md)."""
        N, chunks = shape["N"], -(-shape["K"] // CHUNK)
        table = H200.get(form.name, FIVE_OR_SIX_BITS)
        splits, stages = next((splits, stages) for outputs, splits, stages in table if outputs >= N)
        return fitted(max(1, min(splits, chunks // 2)), stages, facts)

    def candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
        chunks = -(-shape["K"] // CHUNK)
        for stages in (2, 3):
            for splits in (1, 2, 3, 4, 6, 8, 12, 16, 24):
                if splits <= chunks and stages * stage_bytes(form) <= facts.shared_bytes:
                    yield fitted(splits, stages, facts)

    def inputs(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tiles]:
        x = torch.empty(8, shape["K"], device=device, dtype=torch.bfloat16).normal_(generator=generator)
        return x, random_tiles(form, min(shape["N"], SEARCHED_ROWS), shape["K"], device, generator)

    def run(inputs: tuple[Tensor, Tiles], blocks: Blocks) -> Tensor:
        from . import gpu

        return gpu.few_rows(*inputs, gpu.NARROW, blocks)

    return Tunable(
        name=f"tiled_linear.{form.name}",
        default=default,
        candidates=candidates,
        inputs=inputs,
        run=run,
        built_in={"NVIDIA H200": h200},
    )


def stage_bytes(form: TileFormat) -> int:
    """Shared memory of one chunk in flight, of the matrix and of as many rows of activations as there can be."""
    scales = TILE_ROWS * 2 * CHUNK // form.group if form.scaled else 0
    return TILE_ROWS * (form.code_bytes + form.more_bytes) + scales + 2 * CHUNK * FEW_ROWS


def random_tiles(form: TileFormat, rows: int, columns: int, device: torch.device, generator: torch.Generator) -> Tiles:
    """A matrix of any codes that mean numbers."""
    tiles = empty(form, rows, columns, device)
    for plane in (tiles.codes, tiles.more):
        # neither a code nor a scale of E4M3 may be NaN
        plane.random_(0, 0x78, generator=generator)
    scales = torch.empty(*tiles.scales.shape, 2, device=device).uniform_(0.005, 0.02, generator=generator)
    tiles.scales.copy_(scales.half().view(torch.int32).squeeze(-1))
    tiles.factors.uniform_(0.005, 0.02, generator=generator)
    return tiles


Q4, Q5, Q6, Q8, ROW_FP8, NVFP4 = (few_rows_blocks(form) for form in FORMATS.values())
