"""A kernel's block sizes as something that can be chosen, stored and searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .facts import Facts
from .table import Blocks, Shape, table

Inputs = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tunable:
    """One launch whose block sizes depend on shape and device.

    ``default`` works on every device and is what an unknown one runs without a search. ``built_in`` holds, by device
    name, what was measured for this package. ``candidates`` are what a search tries and all that a stored profile may
    name. A search makes ``inputs`` several times, runs ``run(inputs, blocks)`` over them, and takes no candidate whose
    result is further than ``tolerance`` from that of ``default`` (norm of the difference over the norm).

    The keys of a shape are what the choice may depend on. A number of rows that must not change results (columns of a
    verify round, lanes of a batch) is no key where candidates sum in different orders. What varies freely is put into
    few classes (powers of two) by the caller.
    """

    name: str  # "linear.few_rows"
    default: Callable[[Shape, Facts], Blocks]
    candidates: Callable[[Shape, Facts], Iterable[Blocks]]
    inputs: Callable[[Shape, torch.device, torch.Generator], Inputs]
    run: Callable[[Inputs, Blocks], Tensor]
    tolerance: float = 1e-2
    built_in: Mapping[str, Callable[[Shape, Facts], Blocks]] = field(default_factory=dict)

    def blocks(self, device: torch.device, **shape: int) -> Blocks:
        """What a launch on ``device`` takes, the same for every launch of a process once one has asked."""
        return table(device).blocks(self, tuple(shape.items()))
