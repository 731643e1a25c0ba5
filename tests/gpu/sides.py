"""One model run in two ways over the same weights: by a device's own routes, and by the fp32 definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor, ModelFamily
from ninfer_core.api.nn import Embedding, Linear, Runtime, StepOutput
from ninfer_core.cli.bench.geometry import RandomCheckpoint
from ninfer_core.kv.cache import KVCache
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.embedding import DenseEmbedding
from ninfer_core.nn.linear import DenseLinear
from ninfer_core.nn.random import RandomWeights
from ninfer_core.testing import compose
from ninfer_core.testing.rig import Wanted, make_step

LONGEST = 512  # tokens of a sequence
PAGES = LONGEST // PAGE_TOKENS


class Copied:
    """``api.nn.Weights``: the numbers of ``weights``, in another type on another device."""

    def __init__(self, weights: RandomWeights, device: torch.device, dtype: torch.dtype) -> None:
        self.weights, self.device, self.dtype = weights, device, dtype
        self._tables: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.weights.tensor(name, shape).to(self.device)

    def linear(self, names: Any, shapes: Any) -> Linear:
        if isinstance(names, str) and names in self._tables:
            return DenseLinear(self._tables[names])
        return DenseLinear(self.weights.linear(names, shapes).weight.to(self.device, self.dtype))  # type: ignore[attr-defined]

    def dense(self, names: Any, shapes: Any) -> Tensor:
        return self.weights.dense(names, shapes).to(self.device, self.dtype)

    def packed(self, names: Any, shapes: Any) -> Linear | None:
        return None

    def embedding(self, name: str, shape: tuple[int, ...]) -> Embedding:
        table = self.weights.embedding(name, shape).table  # type: ignore[attr-defined]
        self._tables[name] = table.to(self.device, self.dtype)
        return DenseEmbedding(self._tables[name])

    def parts(self, name: str, shape: tuple[int, ...]) -> tuple[EncodedTensor, ...]:
        return self.weights.parts(name, shape)


class Side:
    """A model with its cache and states; ``source`` says where and in which type its random numbers are made.

    ``is_definition``: every operation is its fp32 reference.
    """

    def __init__(
        self,
        family: ModelFamily,
        config: Mapping[str, Any],
        runtime: Runtime,
        *,
        source: Runtime,
        storage: str,
        rows: int = 1,
    ) -> None:
        self.device = runtime.device
        weights = Copied(RandomWeights(source), runtime.device, runtime.dtype)
        checkpoint = RandomCheckpoint("sides", family, config)
        self.model: Any = family.build(checkpoint, weights, runtime)
        dtype = compose({"kv_bf16"}).kv_dtypes[storage]
        self.cache = KVCache(family.kv_geometry(config), dtype, rows * PAGES, runtime.device, runtime.reference)
        self.states = StatePool(family.state_layout(config, runtime), rows, runtime.device)
        self.pages = [list(range(row * PAGES, (row + 1) * PAGES)) for row in range(rows)]
        self.frontiers = [0] * rows

    def feed(
        self, fed: Sequence[Sequence[int]], *, wanted: Wanted, provisional: bool = False, first: int = 0
    ) -> StepOutput:
        """A step over the rows from ``first`` on; a provisional one is folded by ``keep``."""
        self._rows = range(first, first + len(fed))
        step = make_step(
            fed,
            frontiers=[self.frontiers[row] for row in self._rows],
            pages=[self.pages[row] for row in self._rows],
            slots=list(self._rows),
            wanted=wanted,
            provisional=provisional,
        )
        names = ("token_ids", "positions", "page_table", "cache_slots", "logit_index")
        self._step = replace(step, **{name: getattr(step, name).to(self.device) for name in names})
        self._output: StepOutput = self.model.forward(self._step, self.cache, self.states.parts)
        if not provisional:
            self._move([len(tokens) for tokens in fed])
        return self._output

    def keep(self, kept: Sequence[int]) -> None:
        """Fold the first tokens of each row of the last provisional step."""
        self.model.fold(self._step, self._output.records, kept, self.states.parts)
        self._move(kept)

    def _move(self, counts: Sequence[int]) -> None:
        for row, count in zip(self._rows, counts, strict=True):
            self.frontiers[row] += count


def runtime(device: torch.device, dtype: torch.dtype, *, reference: bool) -> Runtime:
    return Runtime(device=device, dtype=dtype, reference=reference, max_context=LONGEST, options={})
