"""Sequences that rounds are measured on: every measurement starts from the same state, however the last one ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import tiny_sizes
import torch

from ninfer_core import options
from ninfer_core.cli.bench.plan import OPTIONS, Plan, plan, sized
from ninfer_core.cli.bench.rounds import Drafts, Sequences, measured_rounds
from ninfer_core.cli.bench.subject import Subject, load_subject, open_geometry, recorded_rounds
from ninfer_core.engine.graphs import DecodeGraphs, Shape
from ninfer_core.engine.recorded import Recorded
from ninfer_core.testing import compose

LINE = ("--device", "cpu", "--kv-dtype", "fp32", "--rounds", "1")
SIZES = ("--rows", "1,2", "--contexts", "70", "--widths", "1,3")
PAGE = 64


@dataclass
class Rerun:
    """In place of a CUDA graph: runs its part of the step again, its kernels under the interpreter."""

    run: Callable[[], None]

    def replay(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ninfer_kernels.device.launches", lambda x: True)
            self.run()


class Reruns(DecodeGraphs):
    def _record(self, recorded: Recorded) -> None:
        recorded.forward = Rerun(lambda: self._forward(recorded))
        recorded.fold = Rerun(lambda: self._fold(recorded))


def loaded(*line: str) -> tuple[Subject, Plan]:
    plugins = compose(tiny_sizes.NEEDED, modules=[tiny_sizes.plugin("tiny_sizes")])
    values = options.parse([*LINE, *line, "--kv-capacity", str(12 * PAGE)], plugins, "bench", own=OPTIONS)[1]
    opened = open_geometry(values, plugins)
    wanted = plan(values, on_gpu=False, longest=opened.longest)
    return load_subject(opened, sized(values, wanted), wanted, plugins), wanted


@pytest.fixture
def load() -> Iterator[Callable[..., tuple[Subject, Plan]]]:
    found = []

    def one(*line: str) -> tuple[Subject, Plan]:
        found.append(loaded(*line))
        return found[-1]

    yield one
    for subject, _ in found:
        subject.engine.stop()
        subject.engine.join()


@pytest.mark.parametrize("geometry", ["tiny", "tiny-moe"])
def test_a_restored_sequence_says_the_same_again_at_every_width(load, geometry):
    found, wanted = load("--geometry", geometry, *SIZES)
    sequences = Sequences(found.engine, 2, 70, wanted.room)
    try:
        once = {}
        for width in (1, 3, 3, 1):
            sequences.restore(width)
            assert [lane.frontier for lane in sequences.lanes] == [70, 70]
            said = [sequences.round(2) for _ in range(3)]
            assert [len(tokens) for tokens in said] == [2 * width] * 3
            assert [lane.frontier for lane in sequences.lanes] == [70 + 3 * width] * 2
            assert once.setdefault(width, said) == said
        # a row's first token follows its context, whatever is drafted behind it
        assert [said[0][0] for said in once.values()] == [once[1][0][0]] * 2
    finally:
        sequences.close()
    worker = found.engine.worker
    assert not worker.lanes.active
    assert worker.program.states.available == worker.program.states.slots


def test_rounds_that_are_replayed_have_a_row_where_they_say_what_single_steps_say(load, monkeypatch):
    """Without a GPU a stand-in replays. The last page is the one that belongs to nobody."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU")
    monkeypatch.setattr("ninfer_core.cli.bench.rounds.CHECKED", 2)  # the interpreter takes seconds for one
    found, wanted = load("--geometry", "tiny", "--layers", "1", "--rows", "2", "--contexts", "3", "--widths", "2")
    program = found.engine.worker.program
    program.graphs = Reruns(
        program.model, program.cache, program.states, program.device,
        lanes=2, pages=4, scratch_page=11, public_tokens=program.public_tokens,
    )  # fmt: skip
    shape = Shape(rows=2, width=2)
    program.graphs.add(shape, news=4)
    rows = dict(measured_rounds(found, wanted, 3, lambda text: None))
    assert [one.impl for one in rows[shape] or ()] == ["graph"]


def test_what_is_recorded_is_what_the_plan_runs():
    plugins = compose(tiny_sizes.NEEDED)
    wanted = plan(options.parse([*LINE, *SIZES], plugins, "bench", own=OPTIONS)[1], on_gpu=False, longest=512)
    assert [(one.rows, one.width) for one in recorded_rounds(wanted)] == [(1, 1), (1, 3), (2, 1), (2, 3)]


def test_drafts_are_the_same_for_a_position_and_spread_over_the_vocabulary():
    drafts = Drafts(50_000)
    assert drafts.propose(0, [1, 2], 8) is None, "no columns to fill"
    drafts.max_drafts = 7
    once = drafts.propose(0, [1] * 900, 8)
    assert once == drafts.propose(0, [2] * 900, 8)
    assert len(set(once.tokens)) == 7
    assert not set(once.tokens) & set(drafts.propose(1, [1] * 900, 8).tokens)
    assert len(drafts.propose(0, [1], 3).tokens) == 3
