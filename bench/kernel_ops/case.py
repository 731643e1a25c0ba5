"""A kernel at one shape, as something that can be checked and timed; and how large everything is.

Legend of this package: T tokens of a step, R rows of it, W columns of a row, N hidden width, F inner width, H query
(GDN: value) heads, G KV (GDN: key) heads, D head dimension, E experts, C chosen ones or context, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import KVDtype
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.config import Qwen35Config, read

Inputs = tuple[Any, ...]
Result = Tensor | tuple[Tensor, ...]
MIXED = 1e-2
"""Relative error of norms of what is rounded to bf16 on the way and summed in another order."""
ROUNDED = 4e-3
"""Of what is rounded to bf16 once, from numbers that differ in the order of their sums."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One launch, or the few that make one operation.

    ``make`` gives the same inputs to generators of one seed, so a ``run`` that writes to its inputs is compared with a
    ``reference`` over others; the reference may be that of a part, which ``compared`` takes out of a result. Whole
    numbers have to be equal, others within ``tolerance``: norm of the difference over the norm.
    """

    op: str  # "norm.add_rms_norm"
    shape: str  # "27b-T8"
    tests: str  # of tests/kernels
    make: Callable[[torch.Generator], Inputs]
    run: Callable[[Inputs], Result]
    reference: Callable[[Inputs], Result]
    compared: Callable[[Inputs, Result], Result] = lambda inputs, result: result
    tolerance: float = MIXED
    # the least that has to move; left out: all inputs once and all results
    moved: Callable[[Inputs, Result], int] | None = None
    flops: int = 0  # where they bind
    beside: Mapping[str, Callable[[Inputs], Result]] = field(default_factory=dict)  # other implementations

    def bytes_moved(self, inputs: Inputs, result: Result) -> int:
        return sized(inputs) + sized(result) if self.moved is None else self.moved(inputs, result)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The geometries, and the tokens of a step."""

    dense: Qwen35Config
    sparse: Qwen35Config
    storages: Mapping[str, KVDtype]  # a plain one, then one with scales
    dtype: torch.dtype = torch.bfloat16  # of activations and plain matrices
    rows: int = 8  # of a full round
    widths: tuple[int, ...] = (4, 8)  # of verify rounds
    chunk: int = 2048  # tokens of a prompt at a time,
    long: int = 8192  # and of a long one
    contexts: tuple[int, ...] = (1024, 8192)
    mixed: tuple[int, ...] = (1, 8, 1024, 8192)  # tokens that a mixture is measured at
    table_rows: int = 1 << 15  # of a table of tokens: as many as its cost does not depend on
    decoded: int = 6528  # rows of a stored matrix made numbers at a time, at the width of the dense model

    @property
    def models(self) -> dict[str, Qwen35Config]:
        return {"27b": self.dense, "35b-a3b": self.sparse}


def published() -> Sizes:
    """Qwen3.5 27B and 35B-A3B, as ``ninfer bench --geometry`` has them."""
    import ninfer_kv_bf16
    import ninfer_kv_int8

    dense, sparse = (read(QWEN35.geometries[name](None)) for name in ("27b", "35b-a3b"))
    storages = {one.name: one for plugin in (ninfer_kv_bf16, ninfer_kv_int8) for one in plugin.ninfer_kv_dtypes()}
    return Sizes(dense=dense, sparse=sparse, storages={name: storages[name] for name in ("bf16", "int8")})


def randn(generator: torch.Generator, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=generator.device).normal_(0, scale, generator=generator)


def gains(generator: torch.Generator, *shape: int) -> Tensor:
    """Weights of a norm."""
    return 1 + randn(generator, *shape, dtype=torch.float32, scale=0.1)


def sized(value: Any) -> int:
    """Bytes of the tensors of a tuple, and of what says how many it has."""
    if isinstance(value, tuple):
        return sum(sized(one) for one in value)
    return int(getattr(value, "nbytes", 0))


def as_type(value: Any, dtype: torch.dtype) -> Any:
    """Inputs whose bf16 tensors are of another type, those in dataclasses too."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is torch.bfloat16 else value
    if type(value) is tuple:
        changed = tuple(as_type(one, dtype) for one in value)
        return value if all(new is one for new, one in zip(changed, value, strict=True)) else changed
    if is_dataclass(value) and not isinstance(value, type):
        made = {one.name: as_type(getattr(value, one.name), dtype) for one in fields(value) if one.init}
        made = {name: new for name, new in made.items() if new is not getattr(value, name)}
        return replace(value, **made) if made else value
    return value


def error(got: Result, wanted: Result) -> float:
    """The largest relative error among the results; infinite for another shape, what is not finite, and whole numbers
    that differ."""
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (got, wanted)), strict=True)
    return max(_error(one, other) for one, other in pairs)


def _error(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape:
        return float("inf")
    if not wanted.dtype.is_floating_point:
        return 0.0 if torch.equal(got.long(), wanted.long()) else float("inf")
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())
