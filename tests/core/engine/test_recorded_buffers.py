"""What the host writes for recorded rounds: page tables, counts, settings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.engine.graphs import RoundRow, Shape, shapes
from ninfer_core.engine.recorded import PageTable, Recorded, Tally
from ninfer_core.sampling.params import SamplingParams

CPU = torch.device("cpu")
SCRATCH = 99


def params(**changes: float) -> SamplingParams:
    plain = {
        "temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "seed": 1,
    }  # fmt: skip
    return SamplingParams(**{**plain, **changes})  # type: ignore[arg-type]


def row(**changes: object) -> RoundRow:
    plain = {"tokens": [1], "frontier": 0, "state_slot": 0, "pages": [0], "params": params()}
    return RoundRow(**{**plain, **changes})  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 9), st.lists(st.integers(0, 50), max_size=4)), max_size=40
    )
)
def test_a_row_of_the_table_always_begins_with_its_pages(changes):
    """Pages that go, come back as others, or move to another row (vllm-53488: rows are compacted every round)."""
    table = PageTable(2, 16, SCRATCH, CPU)
    held: list[list[int]] = [[], []]
    for at, kept, new in changes:
        held[at] = [*held[at][:kept], *new][:16]
        table.hold(at, held[at])
        for own, uploaded in zip(held, table.device.tolist(), strict=True):
            assert uploaded[: len(own)] == own


def test_pages_that_have_not_changed_are_not_uploaded(monkeypatch):
    table = PageTable(1, 8, SCRATCH, CPU)
    table.hold(0, [3, 4])
    copies = []
    real = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, **how: bool) -> torch.Tensor:
        copies.append(source.tolist())
        return real(target, source, **how)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    table.hold(0, [3, 4])
    assert copies == []
    table.hold(0, [3, 4, 7])
    assert copies == [[7]]
    table.hold(0, [3])
    assert copies == [[7]]
    table.hold(0, [5, 4])
    assert copies == [[7], [5, 4]]


class Requests:
    """Lanes whose requests come, speak and go."""

    def __init__(self, lanes: int) -> None:
        self.number = 0
        self.rows: list[tuple[int, int, list[int]]] = []
        for lane in range(lanes):
            self.rows.append((0, 0, []))
            self.replace(lane, 1)

    def replace(self, lane: int, prompt: int) -> None:
        self.number += 1
        self.rows[lane] = (self.number, prompt, [0] * prompt)


LANES, VOCAB = 3, 5
SAID = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("says"), st.integers(0, LANES - 1), SAID),
        st.tuples(st.just("comes"), st.integers(0, LANES - 1), st.integers(0, 3)),
        st.tuples(st.just("round"), st.integers(0, LANES - 1), st.just(0)),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(events=EVENTS, room=st.integers(1, 4))
def test_a_round_reads_what_its_request_has_said(events, room):
    """Whoever had the lane before, however much was said since, in rounds or beside them."""
    tally, requests = Tally(LANES, VOCAB, CPU), Requests(LANES)
    for what, lane, value in events:
        number, prompt, ledger = requests.rows[lane]
        if what == "says":
            ledger.extend(value)
        elif what == "comes":
            requests.replace(lane, value)
        else:
            news = tally.news(row(lane=lane, request=number, ledger=ledger, prompt_tokens=prompt), room)
            assert len(news) <= room
            for token in news:  # as the round does
                tally.counts[lane, token] += 1
            said = Counter(ledger[prompt:])
            assert tally.counts[lane].tolist() == [said[token] for token in range(VOCAB)]


def filled(shape: Shape, rows: list[RoundRow], news: int = 2) -> Recorded:
    recorded = Recorded(shape, PageTable(4, 4, SCRATCH, CPU), SCRATCH, news, CPU)
    recorded.fill(rows, Tally(4, 32, CPU))
    recorded.upload()
    return recorded


def test_columns_without_a_token_write_where_nobody_reads():
    rows = [
        row(tokens=[5, 6, 7], frontier=63, state_slot=2, pages=[8, 9]),
        row(tokens=[4], frontier=10, state_slot=1, pages=[3]),
    ]
    recorded = filled(Shape(rows=2, width=3), rows)
    step, on = recorded.step, recorded.step.on_device
    assert step.token_ids.tolist() == [5, 6, 7, 4, 4, 4]
    assert step.positions.tolist() == [63, 64, 65, 10, 10, 10]
    nowhere = SCRATCH * 64
    assert step.cache_slots.tolist() == [8 * 64 + 63, 9 * 64, 9 * 64 + 1, 3 * 64 + 10, nowhere, nowhere]
    assert step.page_table.tolist() == [[8, 9, SCRATCH, SCRATCH], [3, SCRATCH, SCRATCH, SCRATCH]]
    assert on is not None
    assert (on.firsts.tolist(), on.widths.tolist()) == ([0, 3], [3, 1])
    assert (on.frontiers.tolist(), on.state_slots.tolist()) == ([63, 10], [2, 1])


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, -1, (1 << 64) - 1])
def test_settings_travel_as_the_bits_they_are(seed):
    own = params(temperature=0.7, min_p=0.1, presence_penalty=1.5, frequency_penalty=-0.25, top_k=7, seed=seed)
    recorded = filled(Shape(rows=1, width=1), [row(params=own)])
    numbers = recorded.settings[0]
    assert int(numbers[0]) & ((1 << 64) - 1) == seed & ((1 << 64) - 1)
    assert numbers[1:4].tolist() == [1, 7, 0]
    floats = numbers[4:].to(torch.int32).view(torch.float32).numpy()
    assert floats.tolist() == np.array([0.7, 0.9, 0.1, 1.5, -0.25], dtype=np.float32).tolist()


def test_a_row_that_no_longer_has_penalties_counts_nothing():
    recorded = Recorded(Shape(rows=1, width=1), PageTable(1, 4, SCRATCH, CPU), SCRATCH, 2, CPU)
    tally = Tally(1, 32, CPU)
    said = row(params=params(presence_penalty=1.0), ledger=[9, 4, 5], prompt_tokens=1, request=7)
    for one, expected in ((said, [4, 5]), (row(), [-1, -1]), (said, [-1, -1])):
        recorded.fill([one], tally)
        recorded.upload()
        assert recorded.said[0].tolist() == expected


def test_shapes_are_every_number_of_rows_and_the_powers_of_two():
    found = shapes(2, 5)
    assert [(one.rows, one.width) for one in found] == [(b, w) for b in (1, 2) for w in (1, 2, 4, 6)]
