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
SEARCHED_ROWS = 1 << 15  # of a taller matrix a search multiplies this many rows
SIDES = ((2, 4, 3), (2, 8, 2), (4, 2, 2), (4, 3, 2), (4, 4, 2), (4, 2, 3), (8, 1, 2), (8, 2, 2))
"""Chunks at once, splits, stages: what a search tries beside one chunk at a time."""
PROGRAMS_EACH = 8  # of a multiprocessor, at least


@functools.cache
def few_rows_blocks(form: TileFormat) -> Tunable:
    """Of products with a few rows: programs that share a tile, chunks in flight, warps."""

    def fitted(splits: int, stages: int, facts: Facts, sides: int = 1) -> Blocks:
        """A warp for each side, two of 32 rows of a tile where there is one; with four there the tensor cores'
        instruction would want numbers in shared memory."""
        stages = stages_that_fit(stages, sides * stage_bytes(form), 0, facts)
        return {"splits": splits, "sides": sides, "num_warps": max(sides, 2), "num_stages": stages}

    def default(shape: Shape, facts: Facts) -> Blocks:
        """As many programs as keep the GPU busy, two chunks each at least."""
        tiles, chunks = -(-shape["N"] // TILE_ROWS), -(-shape["K"] // CHUNK)
        return fitted(max(1, min(chunks // 2, PROGRAMS_EACH * facts.multiprocessors // tiles)), 3, facts)

    def h200(shape: Shape, facts: Facts) -> Blocks:
        """The fastest of a search at the shapes of the 27B model (docs/performance.md)."""
        tall, chunks = shape["N"] >= 1 << 15, -(-shape["K"] // CHUNK)
        if form.name == "nvfp4":
            splits, stages = 8, 2
        elif form.name == "fp8_row":
            splits, stages = 2 if tall else 4, 3
        elif form.name == "q8_g32":
            splits, stages = 2 if tall else 8, 3
        else:
            splits = 3 if tall else 4 if shape["N"] >= 1 << 13 else 8
            stages = 4 if splits == 8 and form.name == "q4_g64" else 3
        return fitted(max(1, min(splits, chunks // 2)), stages, facts)

    def candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
        chunks = -(-shape["K"] // CHUNK)
        for stages in (3, 2, 4):
            for splits in (1, 2, 3, 4, 6, 8, 12):
                if splits <= chunks and stages * stage_bytes(form) <= facts.shared_bytes:
                    yield fitted(splits, stages, facts)
        for sides, splits, stages in SIDES:
            if splits * sides <= chunks and stages * sides * stage_bytes(form) <= facts.shared_bytes:
                yield fitted(splits, stages, facts, sides)

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
