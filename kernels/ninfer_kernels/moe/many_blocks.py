"""Block sizes for many tokens: tiles on the tensor cores, weights brought by the copy engine where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.tuning import Blocks, Facts, Shape, Tunable, stages_that_fit, table

from .layer import Experts

COPY_ENGINE = 9  # the first capability with one, Hopper
SEARCHED_EXPERTS, SEARCHED_TOKENS, SEARCHED_CHOSEN = 16, 512, 8  # 256 pairs an expert


def tile_rows(x_TN: Tensor) -> int:
    """Places of a tile: what keeps the tensor cores of the device busy."""
    return 128 if table(x_TN.device).facts.capability[0] >= COPY_ENGINE and x_TN.itemsize == 2 else 64


def gate_up_default(shape: Shape, facts: Facts) -> Blocks:
    return _gate_up(shape, facts, 128, 8 if shape["BM"] > 64 else 4, 4, 64)


def gate_up_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    for BI, warps, stages in ((128, 8, 4), (128, 8, 3), (64, 4, 4), (128, 4, 3), (64, 4, 3), (64, 8, 4)):
        for tail in (64, shape["BM"]) if shape["BM"] > 64 else (64,):
            yield _gate_up(shape, facts, BI, warps, stages, tail)


def down_default(shape: Shape, facts: Facts) -> Blocks:
    many = shape["BM"] > 64
    return _down(shape, facts, 256 if many else 128, 8 if many else 4, 4, 64)


def down_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    for BN, warps, stages in ((256, 8, 4), (256, 8, 3), (128, 4, 4), (128, 8, 4), (128, 4, 3), (64, 4, 4)):
        for tail in (64, shape["BM"]) if shape["BM"] > 64 else (64,):
            yield _down(shape, facts, BN, warps, stages, tail)


def _gate_up(shape: Shape, facts: Facts, BI: int, warps: int, stages: int, tail: int) -> Blocks:
    BN = 64 if shape["bytes"] == 2 else 32
    stages = stages_that_fit(stages, (shape["BM"] + 2 * BI) * BN * shape["bytes"], 0, facts)
    return {
        "TAIL": tail,
        "BI": BI,
        "BN": BN,
        "DESC": _described(shape, facts),
        "num_warps": warps,
        "num_stages": stages,
    }


def _down(shape: Shape, facts: Facts, BN: int, warps: int, stages: int, tail: int) -> Blocks:
    BI = 64 if shape["bytes"] == 2 else 32
    stages = stages_that_fit(stages, (shape["BM"] + BN) * BI * shape["bytes"], 0, facts)
    return {
        "TAIL": tail,
        "BN": BN,
        "BI": BI,
        "DESC": _described(shape, facts),
        "num_warps": warps,
        "num_stages": stages,
    }


def _described(shape: Shape, facts: Facts) -> int:
    """Whether the copy engine can read the matrices: rows that begin at multiples of 16 bytes."""
    aligned = all(shape[width] * shape["bytes"] % 16 == 0 for width in "NF")
    return int(aligned and facts.capability[0] >= COPY_ENGINE)


def inputs(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[Any, ...]:
    """Tokens, experts, and who goes where."""
    from . import many

    N, F, E = shape["N"], shape["F"], SEARCHED_EXPERTS
    dtype = torch.bfloat16 if shape["bytes"] == 2 else torch.float32

    def made(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(0, size[-1] ** -0.5, generator=generator)

    experts = Experts.of(made(E, N), made(1, N), made(E, 2 * F, N), made(E, N, F), made(2 * F, N), made(N, F))
    x = made(SEARCHED_TOKENS, N)
    chosen = many.choose(x, experts, SEARCHED_CHOSEN, shape["BM"])
    return x, experts, chosen, shape["BM"], made(len(chosen.tokens), F), experts.gate_up


def _run_gate_up(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from . import many

    x, experts, chosen, tile, *_ = made
    return many.gate_up(x, experts, chosen, tile, blocks)


def _run_down(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from . import many

    _, experts, chosen, tile, h, _ = made
    return many.down(h, experts, chosen, tile, blocks)


GATE_UP = Tunable(
    name="moe.many_gate_up",
    default=gate_up_default,
    candidates=gate_up_candidates,
    inputs=inputs,
    run=_run_gate_up,
    built_in={"NVIDIA H200": gate_up_default},
)
DOWN = Tunable(
    name="moe.many_down",
    default=down_default,
    candidates=down_candidates,
    inputs=inputs,
    run=_run_down,
    built_in={"NVIDIA H200": down_default},
)
