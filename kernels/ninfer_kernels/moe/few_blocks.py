"""Block sizes for a few tokens. No number of tokens among them: it must not change what a token becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.sizes import next_power_of_2
from ninfer_kernels.tuning import Blocks, Facts, Shape, Tunable

from .layer import Experts

HELD = 64  # elements of weights that a thread has in flight: 16-byte loads of two-byte weights in 32 registers
WARP = 32


def padded(size: int) -> int:
    return max(16, next_power_of_2(size))


def choose_default(shape: Shape, facts: Facts) -> Blocks:
    """Few elements of the router a thread: all of it is read at once."""
    return {"BE": max(1, 2048 // padded(shape["N"])), "num_warps": 4 if shape["N"] <= 4096 else 8}


def choose_h200(shape: Shape, facts: Facts) -> Blocks:
    return {"BE": 1, "num_warps": 1} if padded(shape["N"]) <= 2 * HELD * WARP else choose_default(shape, facts)


def choose_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    for BE, warps in ((1, 4), (1, 2), (1, 1), (2, 4), (2, 2), (1, 8), (2, 8), (4, 8)):
        if BE * padded(shape["N"]) <= 2 * HELD * WARP * warps:
            yield {"BE": BE, "num_warps": warps}


def gate_up_default(shape: Shape, facts: Facts) -> Blocks:
    """Few columns at a time, the next ones on their way: a program is short of registers, not of shared memory."""
    return _gate_up(shape, 4, 256, 2, 3)


def gate_up_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    for BI, BN, warps, stages in (
        (4, 256, 2, 3), (4, 256, 2, 4), (4, 256, 4, 3), (8, 256, 4, 3), (8, 256, 4, 4), (4, 512, 4, 3), (2, 512, 2, 3),
        (2, 1024, 2, 2), (1, 1024, 2, 2),
    ):  # fmt: skip
        yield _gate_up(shape, BI, BN, warps, stages)


def _gate_up(shape: Shape, BI: int, BN: int, warps: int, stages: int) -> Blocks:
    BI = min(BI, padded(max(shape["F"], shape["F_SHARED"])))
    return {"BI": BI, "BN": min(BN, padded(shape["N"])), "num_warps": warps, "num_stages": stages}


def down_default(shape: Shape, facts: Facts) -> Blocks:
    return _down(shape, max(1, 4 * WARP * HELD // (_slots(shape) * _width(shape))), 4)


def down_h200(shape: Shape, facts: Facts) -> Blocks:
    """Half an expert's width at a time, of twice as many outputs."""
    return {"BN": 4, "BF": min(_width(shape), 256), "num_warps": 4}


def down_candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    yield down_h200(shape, facts)
    for BN, warps in ((2, 4), (4, 8), (4, 4), (1, 4), (1, 2), (8, 8), (8, 16), (2, 8)):
        yield _down(shape, BN, warps)


def _down(shape: Shape, BN: int, warps: int) -> Blocks:
    BN = min(BN, padded(shape["N"]))
    most = max(16, HELD * WARP * warps // (_slots(shape) * BN))
    return {"BN": BN, "BF": min(_width(shape), most), "num_warps": warps}


def _slots(shape: Shape) -> int:
    return next_power_of_2(shape["C"])


def _width(shape: Shape) -> int:
    return padded(max(shape["F"], shape["F_SHARED"]))


def _inputs(reads: str) -> Callable[[Shape, torch.device, torch.Generator], tuple[Any, ...]]:
    """A token and no more experts than it has, all of them chosen; the tensor that is read is named once more, so that
    a search counts it."""

    def inputs(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[Any, ...]:
        N, C = shape["N"], shape["C"]
        E, F, J = shape.get("E", C), shape.get("F", 16), shape.get("F_SHARED", 16)

        def made(*size: int) -> Tensor:
            return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(
                0, size[-1] ** -0.5, generator=generator
            )

        experts = Experts.of(
            made(E, N), made(1, N), made(E, 2 * F, N), made(E, N, F), made(2 * J, N), made(N, J)
        )  # fmt: skip
        ids = torch.tensor([[*range(C), E]], dtype=torch.int32, device=device)
        shares = torch.full((1, C + 1), 1 / C, device=device)
        return made(1, N), experts, shares, ids, made(C + 1, max(F, J)), getattr(experts, reads)

    return inputs


def _run_choose(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from . import few

    x, experts, _, ids, *_ = made
    return few.choose(x, experts, ids.shape[1] - 1, blocks)[0]


def _run_gate_up(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from . import few

    x, experts, _, ids, *_ = made
    # nothing is written beyond an expert's own width
    return few.gate_up(x, experts, ids, blocks)[:-1, : experts.down.shape[2]]


def _run_down(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from . import few

    _, experts, shares, ids, h, _ = made
    return few.down(h, experts, shares, ids, blocks)


CHOOSE = Tunable(
    name="moe.few_choose",
    default=choose_default,
    candidates=choose_candidates,
    inputs=_inputs("scores"),
    run=_run_choose,
    built_in={"NVIDIA H200": choose_h200},
)
GATE_UP = Tunable(
    name="moe.few_gate_up",
    default=gate_up_default,
    candidates=gate_up_candidates,
    inputs=_inputs("gate_up"),
    run=_run_gate_up,
    built_in={"NVIDIA H200": gate_up_default},
)
DOWN = Tunable(
    name="moe.few_down",
    default=down_default,
    candidates=down_candidates,
    inputs=_inputs("down"),
    run=_run_down,
    built_in={"NVIDIA H200": down_h200},
)
