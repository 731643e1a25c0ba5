"""The launch of the Triton route, and its block sizes (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ninfer_kernels import pdl, turns
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv
from ninfer_kernels.tuning import Blocks, Facts, Shape, Tunable, device_facts, stages_that_fit

from .kernel import few_rows_kernel
from .tickets import LEAST_OUTPUTS, tickets

FEW_ROWS = 16  # the narrowest tile of every tensor core; beyond it the vendor's library is as fast
NARROW = 8  # rows of a tile where warps share out the inputs
SEARCHED_OUTPUTS = 1 << 16  # of a taller matrix a search multiplies this many rows
NEIGHBOUR = {"N": 1 << 15, "K": 1 << 11}  # 128 MiB, so that none of it is in the cache when it is read again
SPLIT_OUTPUTS = 1 << 14  # a taller matrix keeps every multiprocessor busy as it is
SPLIT_CANDIDATES = (
    *((SPLITS, 1, 64, 128, 4, 4) for SPLITS in (2, 3, 4, 6, 8)),
    *((SPLITS, 1, 64, 128, 4, 6) for SPLITS in (2, 3, 4)),
    *((SPLITS, 1, 64, 64, 4, 8) for SPLITS in (3, 4)),
    (2, 4, 32, 64, 4, 4),
)
"""SPLITS, GROUPS, BN, BK, warps and loads in flight."""
ANY = 1 << 40
H200 = (  # outputs up to, inputs up to, blocks in the order of SPLIT_CANDIDATES
    (2048, 4096, (4, 1, 64, 128, 4, 6)),
    (3072, ANY, (3, 1, 64, 128, 4, 6)),
    (4096, ANY, (2, 1, 64, 128, 4, 6)),
    (6143, ANY, (3, 1, 64, 128, 4, 4)),
    (8191, ANY, (1, 4, 16, 128, 4, 4)),
    (10239, 2048, (1, 1, 64, 128, 4, 4)),
    (10239, ANY, (1, 4, 16, 128, 4, 3)),
    (14335, 2048, (1, 1, 64, 128, 4, 4)),
    (16383, ANY, (1, 1, 64, 128, 4, 6)),
    (20479, 4096, (1, 4, 16, 128, 4, 4)),
    (20479, ANY, (1, 1, 64, 128, 4, 4)),
    ((1 << 17) - 1, 4096, (1, 1, 64, 64, 4, 6)),
    ((1 << 17) - 1, ANY, (1, 4, 32, 128, 4, 3)),
    (ANY, ANY, (1, 1, 64, 128, 4, 4)),
)


def linear(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """``reference.linear`` for 1 to FEW_ROWS rows. x: [T, K], out: [T, N], their rows contiguous; weight: [N, K]
    contiguous.

    A row's sums have one order whatever the number of rows: blocks depend on the matrix alone.
    """
    return launch(x, weight, FEW_ROWS_BLOCKS.blocks(x.device, N=weight.shape[0], K=weight.shape[1]), out)


def launch(x: Tensor, weight: Tensor, blocks: Blocks, out: Tensor | None = None) -> Tensor:
    """``blocks``: BN outputs and GROUPS times BK inputs of a program, SPLITS programs that share out the inputs, warps
    and loads in flight of each. What more than one program asks of a caller: ``tickets``."""
    (T, K), N = x.shape, weight.shape[0]
    if out is None:
        out = torch.empty(T, N, dtype=x.dtype, device=x.device)
    BT = NARROW if blocks["GROUPS"] > 1 and T <= NARROW else FEW_ROWS
    grid = (cdiv(N, blocks["BN"]), blocks["SPLITS"])
    sums = own = None
    if blocks["SPLITS"] > 1:
        assert blocks["BN"] >= LEAST_OUTPUTS
        sums, own = torch.empty(T, *grid, blocks["BN"], dtype=torch.float32, device=x.device), tickets(weight)
    turn = turns.turn(sums)
    launch_kernel(
        few_rows_kernel, grid,
        x, weight, out, sums, own, T, N, K, x.stride(0), out.stride(0),
        BT=BT, TURN=turn, CACHE=".cg" if turn == turns.BESIDE else "",
        **blocks, **pdl.options(x),
    )  # fmt: skip
    return out


def few_rows_default(shape: Shape, facts: Facts) -> Blocks:
    """As many loads in flight as shared memory holds."""
    return _blocks(1, 64, 128, 4, 6, facts)


def few_rows_h200(shape: Shape, facts: Facts) -> Blocks:
    """The fastest of a search at the shapes of Qwen3.5 (docs/performance.md)."""
    N, K = shape["N"], shape["K"]
    for outputs, inputs, blocks in H200:
        SPLITS, GROUPS, _, BK = blocks[:4]
        if outputs >= N and inputs >= K and (SPLITS == 1 or K >= SPLITS * GROUPS * BK):
            return _blocks(*blocks[1:], facts, blocks[0])
    raise AssertionError("the last line of the table is for every shape")


def few_rows_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    for GROUPS, BN, BK, warps, stages in (
        *((1, 64, 128, 4, stages) for stages in (4, 6)),
        *((1, 64, 64, 4, stages) for stages in (6, 8)),
        *((4, 16, 64, 4, stages) for stages in (3, 4, 6)),
        *((4, 16, 128, 4, stages) for stages in (3, 4)),
        *((4, 32, 128, 4, stages) for stages in (2, 3)),
        *((8, 32, 64, 8, stages) for stages in (3, 4)),
        (8, 16, 128, 8, 3),
        (4, 64, 64, 4, 4),
        (1, 128, 128, 8, 3),
    ):
        if stages * stage_bytes(GROUPS, BN, BK) <= facts.shared_bytes:
            yield _blocks(GROUPS, BN, BK, warps, stages, facts)
    for SPLITS, GROUPS, BN, BK, warps, stages in SPLIT_CANDIDATES if shape["N"] <= SPLIT_OUTPUTS else ():
        fits = stages * stage_bytes(GROUPS, BN, BK) <= facts.shared_bytes
        if fits and shape["K"] >= SPLITS * GROUPS * BK:
            yield _blocks(GROUPS, BN, BK, warps, stages, facts, SPLITS)


def _blocks(GROUPS: int, BN: int, BK: int, warps: int, stages: int, facts: Facts, SPLITS: int = 1) -> Blocks:
    stages = stages_that_fit(stages, stage_bytes(GROUPS, BN, BK), 0, facts)
    return {"GROUPS": GROUPS, "BN": BN, "BK": BK, "SPLITS": SPLITS, "num_warps": warps, "num_stages": stages}


def stage_bytes(GROUPS: int, BN: int, BK: int) -> int:
    """Shared memory of one load in flight: BN rows of the matrix and all of x, columns of two bytes."""
    return (BN + FEW_ROWS) * GROUPS * BK * 2


def few_rows_inputs(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    N, K = min(shape["N"], SEARCHED_OUTPUTS), shape["K"]
    x, weight = (torch.empty(rows, K, device=device, dtype=torch.bfloat16) for rows in (8, N))
    tickets(weight)  # a search records launches with matrices nobody has multiplied by before
    return x.normal_(generator=generator), weight.normal_(0, K**-0.5, generator=generator)


def neighbour(device: torch.device) -> Callable[[], Tensor]:
    """What ``routes.neighbour`` is."""
    x, weight = few_rows_inputs(NEIGHBOUR, device, torch.Generator(device).manual_seed(0))
    blocks = few_rows_default(NEIGHBOUR, device_facts(device))
    return lambda: launch(x, weight, blocks)


FEW_ROWS_BLOCKS = Tunable(
    name="linear.few_rows",
    default=few_rows_default,
    candidates=few_rows_candidates,
    inputs=few_rows_inputs,
    run=lambda inputs, blocks: launch(*inputs, blocks),
    built_in={"NVIDIA H200": few_rows_h200},
)
