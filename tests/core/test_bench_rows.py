"""Benchmark rows: what a row holds, and that a file of them only grows."""

from __future__ import annotations

import msgspec
import pytest

from ninfer_core.cli.rows import Row, append, quantiles, row


def test_a_row_says_what_where_and_with_which_versions():
    made = row("decode", "R1", "ninfer", [10.0, 30.0, 20.0], tokens=4)
    assert (made.median_ms, made.p20_ms, made.p80_ms) == (20.0, pytest.approx(14.0), pytest.approx(26.0))
    assert made.tokens_per_second == pytest.approx(200.0)
    assert made.device
    assert {"ninfer", "torch", "python", "commit"} <= set(made.versions)


def test_one_measurement_is_its_own_spread():
    assert quantiles([5.0]) == (5.0, 5.0, 5.0)


def test_rows_are_added_below_the_old_ones_and_read_back_the_same(tmp_path):
    path = tmp_path / "rows" / "x.jsonl"
    rows = [row("a", "s", "ninfer", [1.0]), row("b", "s", "reference", [2.0, 3.0])]
    append(path, rows[:1])
    append(path, rows[1:])
    assert [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()] == rows
