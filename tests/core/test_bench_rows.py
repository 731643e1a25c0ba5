"""Benchmark rows: what a row holds, and that a file of them only grows, with nothing else in it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from ninfer_core.cli.rows import Row, append, check_out, quantiles, row
from ninfer_core.errors import StartupError

ONE = b'{"op":"decode","shape":"R1"}'


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


def test_rows_begin_on_a_line_of_their_own(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(ONE)
    rows = [row("a", "s", "ninfer", [1.0])]
    append(path, rows)
    append(path, rows)
    assert [msgspec.json.decode(line)["op"] for line in path.read_bytes().split(b"\n")[:-1]] == ["decode", "a", "a"]


@pytest.mark.parametrize("held", [None, b"", ONE, ONE + b"\n", b"not json\n" + ONE + b"\n\n", ONE + b"\r\n"])
def test_a_new_file_an_empty_one_and_one_of_rows_can_be_added_to(tmp_path, held):
    path = tmp_path / "new" / "x.jsonl"
    if held is not None:
        path.parent.mkdir()
        path.write_bytes(held)
    check_out(path)
    assert path.read_bytes() == (held or b"")


def _folder(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _holding(data: bytes):
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_folder, "is a folder"),
        (_fifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.symlink_to(path), "cannot be written: Too many levels of symbolic links"),
        (_holding(b"NINFER\0\xff\xfe" * 1000), "its last line is no row"),
        (_holding(b'"\xff"'), "its last line is no row"),
        (_holding(b"[" * (2 << 20)), "its last line is no row"),
        (_holding(ONE + b"\nmore"), "its last line is no row"),
        (_holding(b'{"shape":"R1"}\n'), "its last line is no row"),
        (_holding(b'["op"]\n'), "its last line is no row"),
        (_holding(b"\n\n"), "its last line is no row"),
    ],
)
def test_what_rows_would_ruin_or_never_reach_is_refused_and_left_as_it_was(tmp_path, make, words):
    path = tmp_path / "x"
    make(path)
    before = path.lstat()
    with pytest.raises(StartupError, match=words) as refused:
        check_out(path)
    assert str(path) in str(refused.value)
    assert "it takes a file of rows, or the name of a new one" in str(refused.value)
    assert (path.lstat().st_size, path.lstat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_name_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(ONE)
    for path, words in ((tmp_path / "file" / "a" / "b", "Not a directory"), (tmp_path / ("x" * 300), "name too long")):
        with pytest.raises(StartupError, match=f"cannot be written: .*{words}"):
            check_out(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(ONE)
    path.chmod(0o400)
    with pytest.raises(StartupError, match="Permission denied"):
        check_out(path)
