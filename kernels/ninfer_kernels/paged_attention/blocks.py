"""How attention is cut up: warps, loads in flight, and the programs that fill a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.tuning import Blocks, Facts, Shape, Tunable, stages_that_fit

from .layout import PAGE_TOKENS, Rows, Stored

MANY_QUERIES = 64  # in a program: beyond what a decode round has
SEARCHED_CONTEXT = 8192  # tokens before the step a search attends to,
SEARCHED_CHUNK = 1024  # and those of a prefill chunk


def default(shape: Shape, facts: Facts) -> Blocks:
    """Two programs a multiprocessor. fp32 operands fill shared memory with one load in flight."""
    many = shape["BQ"] >= MANY_QUERIES
    stages = 1 if shape["bytes"] == 4 else stages_that_fit(2, *shared_bytes(shape), facts)
    return {"programs": 2 * facts.multiprocessors, "num_warps": 8 if many else 4, "num_stages": stages}


def candidates(shape: Shape, facts: Facts) -> Iterator[Blocks]:
    """Of many queries no program is one of several over the same pages, so their number changes nothing."""
    many = shape["BQ"] >= MANY_QUERIES
    most = 1 if shape["bytes"] == 4 else stages_that_fit(3, *shared_bytes(shape), facts)
    for share in (2,) if many else (2, 1, 3, 4):
        for warps in (4, 8) if many else (4, 2, 8):
            for stages in range(1, most + 1):
                yield {"programs": share * facts.multiprocessors, "num_warps": warps, "num_stages": stages}


def shared_bytes(shape: Shape) -> tuple[int, int]:
    """Of one load in flight, a page of keys and one of values, and of the queries beside them."""
    row = shape["D"] * shape["bytes"]
    return 2 * PAGE_TOKENS * row, max(shape["BQ"], 32) * row


def inputs(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[Any, ...]:
    """One row over a long context in plain storage; a stored form with a codec of its own takes the same blocks."""
    H, G, D, BQ = (shape[key] for key in ("H", "G", "D", "BQ"))
    dtype = torch.float32 if shape["bytes"] == 4 else torch.bfloat16
    width = max(1, BQ * G // H) if BQ < MANY_QUERIES else SEARCHED_CHUNK
    pages = -(-(SEARCHED_CONTEXT + width) // PAGE_TOKENS)
    q = torch.empty(width, H, D, device=device, dtype=dtype).normal_(generator=generator)
    keys, values = (
        torch.empty(pages, G, PAGE_TOKENS, D, device=device, dtype=dtype).normal_(generator=generator) for _ in "kv"
    )
    rows = Rows((0, width), (SEARCHED_CONTEXT,), torch.arange(pages, device=device)[None])
    rows.on_device()  # uploaded here, where nothing is being recorded
    return q, keys, values, rows, BQ


def run(made: tuple[Any, ...], blocks: Blocks) -> Tensor:
    from .gpu import launch

    q, keys, values, rows, BQ = made
    sides = (Stored((plane,), lambda planes: planes[0].float(), is_cast=True) for plane in (keys, values))
    return launch(q, *sides, rows, q.shape[2] ** -0.5, BQ, blocks)


ATTEND = Tunable(
    name="paged_attention.attend",
    default=default,
    candidates=candidates,
    inputs=inputs,
    run=run,
    built_in={"NVIDIA H200": default},
)
