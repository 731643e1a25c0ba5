"""Recorded decode rounds: one CUDA graph per number of rows and verify width, between the upload of its numbers and the
download of what was drawn.

A graph reads lengths, tables, slots and samplers from device memory, so it serves every context and every request; a
row with fewer drafts than its graph has columns says so through ``RowsOnDevice.widths``. What a graph has no place for
is run step by step: a missing size costs time, never a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
import torch

from ninfer_core.api.nn import Cache, Model, StepOutput
from ninfer_core.engine.recorded import PageTable, Recorded, Replayed, RoundRow, Shape, Tally
from ninfer_core.kv.state import StatePool
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import Drawn
from ninfer_kernels.device import gpu_route

__all__ = ["DecodeGraphs", "Recorded", "RoundRow", "Sent", "Shape", "computed_allowance", "shapes"]

log = structlog.get_logger()
MIB = 1 << 20
NOBODY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=1, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, seed=0
)


class Mark:
    """A place in the work of the device that the host can wait for; elsewhere work is done when its call returns."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._event = device, None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def set(self) -> None:
        """Here, after all that was sent off until now."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until the device has come to where it was set last; with the GIL released."""
        if self._event is not None:
            self._event.synchronize()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sent:
    """A round that is under way, or over."""

    recorded: Recorded
    rows: Sequence[RoundRow]
    side: int  # where what it draws comes down

    def drawn(self) -> list[list[Drawn]]:
        """What it drew, by row and column, once it was waited for; until the round after the next is sent off."""
        return self.recorded.drawn(self.rows, self.side)


class DecodeGraphs:
    """The recorded rounds of one engine. Called by the engine thread only.

    A round is ``start``, ``wait``, ``Sent.drawn``, ``fold``. ``fold`` and the next ``start`` may come before ``wait``:
    the device works in the order of the calls. Two rounds are under way at most.
    """

    def __init__(
        self,
        model: Model,
        cache: Cache,
        states: StatePool,
        device: torch.device,
        *,
        lanes: int,
        pages: int,
        scratch_page: int,
        public_tokens: int,
    ) -> None:
        """``pages``: the most a row has; ``scratch_page``: a page that belongs to nobody."""
        self._model, self._cache, self._states, self._device = model, cache, states, device
        self._lanes, self._pages, self._scratch_page = lanes, pages, scratch_page
        self._public_tokens = public_tokens
        self._recorded: dict[int, list[Recorded]] = {}  # by rows, narrow ones first
        self._memory: Any = None  # one pool for all graphs: rounds never overlap
        self._side = 0  # of the next round
        self._under_way: list[Sent] = []
        self._down = [Mark(device), Mark(device)]  # by side: what was drawn has come down
        self._up = Mark(device)  # what the host has written was copied
        self._table: PageTable | None = None  # made when something is recorded, so that its memory is measured too
        self._tally: Tally | None = None

    def __len__(self) -> int:
        return sum(map(len, self._recorded.values()))

    def record(self, shapes: Iterable[Shape]) -> int:
        """Record every shape; the device bytes it took. A shape that cannot be recorded is left out and logged."""
        before = torch.cuda.mem_get_info(self._device)[0]
        # the largest first: the smaller ones then fit into its memory
        wanted = sorted(shapes, key=lambda one: -one.rows * one.width)
        for shape in wanted:
            try:
                self.add(shape, news=max(one.width for one in wanted))
            except (RuntimeError, torch.OutOfMemoryError) as error:
                log.warning("cuda_graph_missing", rows=shape.rows, width=shape.width, error=type(error).__name__)
        return max(before - torch.cuda.mem_get_info(self._device)[0], 0)

    def choose(self, rows: int, width: int) -> Recorded | None:
        """The recorded shape for so many rows with the fewest columns that hold ``width`` of them."""
        for one in self._recorded.get(rows, ()):
            if one.shape.width >= width:
                return one
        return None

    def round(self, recorded: Recorded, rows: Sequence[RoundRow]) -> list[list[Drawn]]:
        """A whole round: what was drawn, by row and column."""
        sent = self.start(recorded, rows)
        self.wait(sent)
        return sent.drawn()

    def start(self, recorded: Recorded, rows: Sequence[RoundRow]) -> Sent:
        """Send a round off: the forward pass and the draw."""
        assert self._tally is not None and recorded.forward is not None
        if len(self._under_way) > 1:
            self.wait(self._under_way[0])  # nobody wanted it
        self._up.wait()
        sent = Sent(recorded=recorded, rows=rows, side=self._side)
        recorded.fill(rows, self._tally)
        recorded.upload()
        self._up.set()
        recorded.forward.replay()
        recorded.download(sent.side)
        self._down[sent.side].set()
        self._side = 1 - self._side
        self._under_way.append(sent)
        return sent

    def wait(self, sent: Sent) -> None:
        """Until what was drawn has come down; other threads run meanwhile."""
        if sent in self._under_way:
            self._down[sent.side].wait()
            del self._under_way[: self._under_way.index(sent) + 1]

    def fold(self, recorded: Recorded, kept: Sequence[int]) -> None:
        """Send off the fold over the first ``kept[b]`` tokens of each row of the last round."""
        if recorded.fold is not None:
            self._up.wait()  # what the fold before this one kept
            recorded.keep(kept)
            recorded.fold.replay()

    def add(self, shape: Shape, *, news: int) -> Recorded:
        """Record one shape. ``news``: tokens a row may have to count in a round."""
        # outside inference mode, so that rounds in and out of it may write to the buffers
        with torch.inference_mode(False):
            if self._table is None or self._tally is None:
                self._table = PageTable(self._lanes, self._pages, self._scratch_page, self._device)
                self._tally = Tally(self._lanes, self._public_tokens, self._device)
            recorded = Recorded(shape, self._table, self._scratch_page, news, self._device)
        nobody = RoundRow(tokens=[0], frontier=0, state_slot=0, pages=[self._scratch_page], params=NOBODY)
        recorded.fill([nobody] * shape.rows, self._tally)
        recorded.upload()
        self._record(recorded)
        own = self._recorded.setdefault(shape.rows, [])
        own.append(recorded)
        own.sort(key=lambda one: one.shape.width)
        return recorded

    def _record(self, recorded: Recorded) -> None:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):  # kernels are compiled and libraries settle before anything is recorded
                self._forward(recorded)
                self._fold(recorded)
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        recorded.forward = self._captured(lambda: self._forward(recorded), side)
        if recorded.records is not None:
            recorded.fold = self._captured(lambda: self._fold(recorded), side)
            # the fold comes before any other round: the next shape's records may lie where these lay
            recorded.records = None

    def _captured(self, run: Callable[[], None], side: torch.cuda.Stream) -> Replayed:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=side):
            run()
        self._memory = graph.pool()
        return graph

    def _forward(self, recorded: Recorded) -> None:
        """A round as it is recorded, in the order of the device."""
        spoken = self._feed(recorded)
        # a step of its own: what is derived from a step is kept with it, and must be derived inside the recording
        recorded.step = replace(recorded.step)
        output = self._model.forward(recorded.step, self._cache, self._states.parts)
        self._draw(recorded, output, spoken)
        # the logits are not kept: the next shape's may lie where they lay
        recorded.records = output.records

    def _feed(self, recorded: Recorded) -> Any:
        """Tokens that the host did not know are put where the round reads them, and what was said is counted."""
        gpu = gpu_route(recorded.ids, "ninfer_kernels.sampling")
        if gpu is None:
            raise RuntimeError("nothing draws on this device")
        assert self._tally is not None
        spoken = gpu.Spoken(self._tally.counts, self._tally.last, recorded.lanes, recorded.ids)
        gpu.feed(spoken, recorded.said)
        return spoken

    def _draw(self, recorded: Recorded, output: StepOutput, spoken: Any) -> None:
        gpu = gpu_route(output.logits, "ninfer_kernels.sampling")
        if gpu is None:
            raise RuntimeError("nothing draws from such logits on this device")
        gpu.draw_into(
            recorded.draws,
            output.logits[:, : self._public_tokens],
            recorded.settings,
            recorded.positions,
            width=recorded.shape.width,
            shift=1,  # a column fills the position after its token's
            spoken=spoken,
        )

    def _fold(self, recorded: Recorded) -> None:
        recorded.upload_kept()
        self._model.fold(recorded.step, recorded.records, recorded.kept, self._states.parts)


def shapes(lanes: int, drafts: int) -> list[Shape]:
    """What an engine of so many lanes records: every number of rows, at one column and at each power of two up to the
    columns of its longest draft."""
    columns = drafts + 1
    widths = {1, columns} | {1 << i for i in range(1, columns.bit_length()) if 1 << i < columns}
    return [Shape(rows=rows, width=width) for rows in range(1, lanes + 1) for width in sorted(widths)]


def computed_allowance(count: int) -> int:
    """Bytes to set aside for ``count`` graphs before they exist (engine.md §7)."""
    return (64 + 24 * count) * MIB
