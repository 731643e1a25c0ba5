"""A model tried out before its KV pool exists: what a step needs beside the pool, and what its kernels are asked for.

The last chunk of a full context and the decode rounds of an engine run once over a few pages that stand for all. Their
results are nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ninfer_core.api.nn import Cache, Model, RowsOnDevice, Step
from ninfer_core.engine.graphs import Shape
from ninfer_core.kv.pages import PAGE_TOKENS, pages_for
from ninfer_core.kv.state import StatePool


class Rehearsal:
    """Steps of every kind an engine will run. Called before anything else uses the model and the states."""

    def __init__(
        self, model: Model, cache: Cache, states: StatePool, device: torch.device, *, pages: int, vocabulary: int
    ) -> None:
        """``pages`` of ``cache`` stand for those of every row; ``vocabulary``: token ids are below it."""
        self._model, self._cache, self._states, self._device = model, cache, states, device
        self._pages, self._vocabulary = pages, vocabulary

    @torch.inference_mode()
    def run(self, *, chunk: int, max_context: int, rounds: Sequence[Shape]) -> None:
        """A prefill of ``chunk`` tokens and ``rounds``, each at the end of a context."""
        self.prefill(chunk, max_context)
        for shape in rounds:
            self.decode(shape, max_context)

    def prefill(self, chunk: int, max_context: int) -> None:
        slot = self._states.take()
        try:
            shape = Shape(rows=1, width=chunk)
            step = self._step(shape, max_context - chunk, [slot], max_context, provisional=False)
            self._model.forward(step, self._cache, self._states.parts)
        finally:
            self._states.give_back(slot)

    def decode(self, shape: Shape, max_context: int) -> None:
        slots: list[int] = []
        try:
            while len(slots) < shape.rows:
                slots.append(self._states.take())
            step = self._step(shape, max(max_context - shape.width, 0), slots, max_context, provisional=True)
            out = self._model.forward(step, self._cache, self._states.parts)
            kept: Sequence[int] | torch.Tensor = [0] * shape.rows
            if step.on_device is not None:
                kept = torch.zeros(shape.rows, dtype=torch.int64, device=self._device)
            self._model.fold(step, out.records, kept, self._states.parts)
        finally:
            for slot in slots:
                self._states.give_back(slot)

    def _step(self, shape: Shape, frontier: int, slots: list[int], max_context: int, *, provisional: bool) -> Step:
        """``shape.width`` tokens of every row from position ``frontier``, as the engine would hand them over."""
        B, W = shape.rows, shape.width
        T = B * W
        index = torch.arange(T, device=self._device)
        positions = frontier + index % W
        table = torch.arange(pages_for(max_context), device=self._device) % self._pages
        firsts = tuple(range(0, T + 1, W))
        recorded = provisional and bool(getattr(self._model, "records_steps", False))
        return Step(
            token_ids=index % self._vocabulary,
            positions=positions,
            starts=firsts,
            frontiers=(frontier,) * B,
            page_table=table.expand(B, -1).contiguous(),
            cache_slots=table[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
            state_slots=tuple(slots),
            logit_index=index if provisional else index[-1:],
            provisional=provisional,
            on_device=self._rows(firsts[:-1], W, frontier, slots) if recorded else None,
        )

    def _rows(self, firsts: Sequence[int], width: int, frontier: int, slots: Sequence[int]) -> RowsOnDevice:
        def on_device(numbers: Sequence[int]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=self._device)

        B = len(slots)
        return RowsOnDevice(
            firsts=on_device(firsts),
            widths=on_device([width] * B),
            frontiers=on_device([frontier] * B),
            state_slots=on_device(slots),
        )


def some_rounds(rounds: Sequence[Shape]) -> list[Shape]:
    """Of all rounds those of one, two, four, ... rows and of the most, at their narrowest and their widest."""
    if not rounds:
        return []
    most = max(shape.rows for shape in rounds)
    chosen = []
    for rows in sorted({shape.rows for shape in rounds}):
        if rows & (rows - 1) == 0 or rows == most:
            widths = [shape.width for shape in rounds if shape.rows == rows]
            chosen += [Shape(rows=rows, width=width) for width in sorted({min(widths), max(widths)})]
    return chosen
