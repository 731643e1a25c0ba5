"""Recorded decode rounds: one CUDA graph per number of rows and verify width, replayed with one upload a round.

A graph reads lengths, tables and slots from device memory, so it serves every context; a row with fewer drafts than
its graph has columns says so through ``RowsOnDevice.widths``. What a graph has no place for is run step by step: a
missing size costs time, never a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
import torch

from ninfer_core.api.nn import Cache, Model, RowsOnDevice, Step, StepOutput
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool

log = structlog.get_logger()
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Rows of a round, and the columns each of them has a place for."""

    rows: int
    width: int


class Recorded:
    """One shape: its buffers, the step over them, the graph of the forward pass and that of the fold."""

    def __init__(self, shape: Shape, pages: int, scratch_page: int, device: torch.device) -> None:
        self.shape, self.pages, self.scratch_page = shape, pages, scratch_page
        B, T = shape.rows, shape.rows * shape.width
        self._sizes = [T, T, T, B, B, B, B, B * pages]
        self._host = torch.zeros(sum(self._sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self._numbers = self._host[: -B * pages]
        # a row's pages seldom change from one round to the next, and there may be thousands
        self._table = self._host[-B * pages :].view(B, pages)
        self._filled: list[list[int]] = [[] for _ in range(B)]
        parts = torch.split(self._device, self._sizes)
        ids, positions, cache_slots, firsts, widths, frontiers, state_slots, table = parts
        self.kept = torch.zeros(B, dtype=torch.int64, device=device)
        self.step = Step(
            token_ids=ids,
            positions=positions,
            starts=tuple(range(0, T + 1, shape.width)),
            frontiers=(0,) * B,
            page_table=table.view(B, pages),
            cache_slots=cache_slots,
            state_slots=tuple(range(B)),
            logit_index=torch.arange(T, device=device),
            provisional=True,
            on_device=RowsOnDevice(firsts=firsts, widths=widths, frontiers=frontiers, state_slots=state_slots),
        )
        self.forward = torch.cuda.CUDAGraph()
        self.fold: torch.cuda.CUDAGraph | None = None  # of a model with recurrent state
        self.output: StepOutput | None = None
        self.fill([[0]] * B, [0] * B, [0] * B, [[scratch_page]] * B)

    def fill(
        self,
        fed: Sequence[Sequence[int]],
        frontiers: Sequence[int],
        state_slots: Sequence[int],
        pages: Sequence[Sequence[int]],
    ) -> None:
        """Upload a round: of each row its tokens, their first position, its state's slot and its pages.

        Columns without a token repeat the last one and write where nobody reads.
        """
        W = self.shape.width
        ids: list[int] = []
        positions: list[int] = []
        cache_slots: list[int] = []
        for tokens, frontier, own in zip(fed, frontiers, pages, strict=True):
            missing = W - len(tokens)
            ids += [*tokens, *[tokens[-1]] * missing]
            for position in range(frontier, frontier + len(tokens)):
                positions.append(position)
                cache_slots.append(own[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
            positions += [frontier + len(tokens) - 1] * missing
            cache_slots += [self.scratch_page * PAGE_TOKENS] * missing
        numbers = [*ids, *positions, *cache_slots, *self.step.starts[:-1], *map(len, fed), *frontiers, *state_slots]
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.int64))
        for row, own in enumerate(pages):
            if self._filled[row] != own:
                self._filled[row] = list(own)
                # what is left of longer ones lies past the row's last page, where nobody reads
                self._table[row, : len(own)] = torch.tensor(own, dtype=torch.int64)
        self._device.copy_(self._host, non_blocking=True)


class DecodeGraphs:
    """The recorded rounds of one engine. Called by the engine thread only."""

    def __init__(
        self, model: Model, cache: Cache, states: StatePool, device: torch.device, *, pages: int, scratch_page: int
    ) -> None:
        """``pages``: the most a row has; ``scratch_page``: a page that belongs to nobody."""
        self._model, self._cache, self._states, self._device = model, cache, states, device
        self._pages, self._scratch_page = pages, scratch_page
        self._recorded: dict[Shape, Recorded] = {}
        self._memory: Any = None  # one pool for all graphs: rounds never overlap

    def __len__(self) -> int:
        return len(self._recorded)

    def record(self, shapes: Iterable[Shape]) -> int:
        """Record every shape; the device bytes it took. A shape that cannot be recorded is left out and logged."""
        before = torch.cuda.mem_get_info(self._device)[0]
        # the largest first: the smaller ones then fit into its memory
        for shape in sorted(shapes, key=lambda one: -one.rows * one.width):
            try:
                self._recorded[shape] = self._record(shape)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                log.warning("cuda_graph_missing", rows=shape.rows, width=shape.width, error=type(error).__name__)
        return max(before - torch.cuda.mem_get_info(self._device)[0], 0)

    def choose(self, rows: int, width: int) -> Recorded | None:
        """The recorded shape for so many rows with the fewest columns that hold ``width`` of them."""
        fitting = [shape for shape in self._recorded if shape.rows == rows and shape.width >= width]
        return self._recorded[min(fitting, key=lambda shape: shape.width)] if fitting else None

    def forward(self, recorded: Recorded) -> StepOutput:
        """Replay the forward pass over what was filled in; the output is overwritten by the next replay."""
        recorded.forward.replay()
        assert recorded.output is not None
        return recorded.output

    def fold(self, recorded: Recorded, kept: Sequence[int]) -> None:
        """Replay the fold over the first ``kept[b]`` tokens of each row."""
        if recorded.fold is not None:
            recorded.kept.copy_(torch.tensor(kept, dtype=torch.int64))
            recorded.fold.replay()

    def _record(self, shape: Shape) -> Recorded:
        recorded = Recorded(shape, self._pages, self._scratch_page, self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):  # kernels are compiled and libraries settle before anything is recorded
                self._fold(recorded, self._forward(recorded))
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(recorded.forward, pool=self._memory, stream=side):
            recorded.output = self._forward(recorded)
        self._memory = recorded.forward.pool()
        if recorded.output.records is not None:
            recorded.fold = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded.fold, pool=self._memory, stream=side):
                self._fold(recorded, recorded.output)
        return recorded

    def _forward(self, recorded: Recorded) -> StepOutput:
        # a step of its own: what is derived from a step is kept with it, and must be derived inside the recording
        recorded.step = replace(recorded.step)
        return self._model.forward(recorded.step, self._cache, self._states.parts)

    def _fold(self, recorded: Recorded, output: StepOutput) -> None:
        self._model.fold(recorded.step, output.records, recorded.kept, self._states.parts)


def shapes(lanes: int, drafts: int) -> list[Shape]:
    """What an engine of so many lanes records: every number of rows, at one column and at each power of two up to the
    columns of its longest draft."""
    columns = drafts + 1
    widths = {1, columns} | {1 << i for i in range(1, columns.bit_length()) if 1 << i < columns}
    return [Shape(rows=rows, width=width) for rows in range(1, lanes + 1) for width in sorted(widths)]


def computed_allowance(count: int) -> int:
    """Bytes to set aside for ``count`` graphs before they exist (engine.md §7)."""
    return (64 + 24 * count) * MIB
