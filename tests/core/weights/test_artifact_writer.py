"""All of an artifact or nothing: existing targets, full disks, liars, interrupts and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ninfer_core.api import ArtifactError
from ninfer_core.weights import staged
from ninfer_core.weights.container import Container
from ninfer_core.weights.layout_plan import NewArtifact, NewTensor
from ninfer_core.weights.writer import write_artifact

SIZE = 40_000


def artifact(
    read: Callable[[], Sequence[memoryview]] = lambda: [memoryview(bytes(SIZE))], fill: int = 0
) -> NewArtifact:
    """Two tensors, the second read by ``read``."""
    first = NewTensor(
        id="first",
        shape=(SIZE // 4,),
        format="fp32",
        layout="contiguous_le_v1",
        bytes=SIZE,
        read=lambda: [memoryview(bytes([fill]) * SIZE)],
    )
    return NewArtifact(
        components={"text": {"config": {}}},
        resources=[],
        tensors=[first, replace(first, id="second", read=read)],
        bindings={"a": {"object": "first"}, "b": {"object": "second"}},
    )


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch) -> str:
    """Both ways to stage a file: without a name, and under a hidden one where that is not possible."""
    if request.param == "named":
        monkeypatch.setattr(staged.os, "O_TMPFILE", 0, raising=False)
    return request.param


def test_several_buffers_make_one_object(tmp_path: Path, way: str):
    halves = [memoryview(b"\1" * (SIZE // 2)), memoryview(b"\2" * (SIZE // 2))]
    (path,) = write_artifact(tmp_path / "m.ninfer", artifact(lambda: halves))
    with Container(str(path)) as container:
        assert bytes(container.object_bytes("second")) == b"\1" * (SIZE // 2) + b"\2" * (SIZE // 2)


def test_the_result_has_the_usual_permissions(tmp_path: Path, way: str):
    before = os.umask(0o027)
    try:
        (path,) = write_artifact(tmp_path / "m.ninfer", artifact())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("existing", ["m.ninfer", "m.ninfer.part-0002"])
def test_an_existing_target_is_refused_and_kept(tmp_path: Path, way: str, existing: str):
    (tmp_path / existing).write_text("mine")
    with pytest.raises(ArtifactError, match="refusing to overwrite"):
        write_artifact(tmp_path / "m.ninfer", artifact(), max_file_bytes=32768)
    assert [p.name for p in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


def test_a_target_that_appears_meanwhile_is_refused_and_kept(tmp_path: Path, way: str):
    target = tmp_path / "m.ninfer"

    def read() -> list[memoryview]:
        target.write_text("mine")
        return [memoryview(bytes(SIZE))]

    with pytest.raises(ArtifactError, match="refusing to overwrite"):
        write_artifact(target, artifact(read), max_file_bytes=32768)
    assert [p.name for p in tmp_path.iterdir()] == ["m.ninfer"]
    assert target.read_text() == "mine"


@pytest.mark.parametrize("limit", [None, 32768])
def test_replacing_keeps_the_old_file_until_the_new_one_is_whole(tmp_path: Path, way: str, limit: int | None):
    target = tmp_path / "m.ninfer"
    write_artifact(target, artifact(fill=1), max_file_bytes=limit)
    before = sorted(p.name for p in tmp_path.iterdir())

    def fail() -> list[memoryview]:
        raise RuntimeError("the source went away")

    with pytest.raises(RuntimeError):
        write_artifact(target, artifact(fail, fill=2), replace=True, max_file_bytes=limit)
    with Container(str(target)) as container:
        assert bytes(container.object_bytes("first")) == b"\1" * SIZE
    write_artifact(target, artifact(fill=3), replace=True, max_file_bytes=limit)
    with Container(str(target)) as container:
        assert bytes(container.object_bytes("first")) == b"\3" * SIZE
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_an_object_that_gives_other_bytes_than_promised_is_refused(tmp_path: Path, way: str, size: int):
    with pytest.raises(ArtifactError, match=r"^second: output coverage is incomplete$"):
        write_artifact(tmp_path / "m.ninfer", artifact(lambda: [memoryview(bytes(size))]))
    assert list(tmp_path.iterdir()) == []


def test_a_limit_below_directory_and_one_page_is_refused(tmp_path: Path):
    with pytest.raises(ArtifactError, match="maximum file size cannot hold the directory"):
        write_artifact(tmp_path / "m.ninfer", artifact(), max_file_bytes=8191)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_the_reader_would_refuse_is_never_written(tmp_path: Path):
    twice = artifact()
    with pytest.raises(ArtifactError, match='duplicate object id "first"'):
        write_artifact(tmp_path / "m.ninfer", replace(twice, tensors=[twice.tensors[0]] * 2, bindings={}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_or_not_writable_is_one_line(tmp_path: Path):
    with pytest.raises(ArtifactError, match="there is no folder"):
        write_artifact(tmp_path / "no" / "m.ninfer", artifact())
    with pytest.raises(ArtifactError, match=r"/proc/m\.ninfer: cannot be written"):
        write_artifact("/proc/m.ninfer", artifact())


@pytest.mark.parametrize("allowed", [0, 100, 50_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, way: str, monkeypatch, allowed: int):
    left = allowed

    def write(fd: int, data: memoryview) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(28, "No space left on device")
        count = real(fd, data[: min(left, 4096)])
        left -= count
        return count

    real = os.write
    monkeypatch.setattr(staged.os, "write", write)
    with pytest.raises(ArtifactError, match=r"m.ninfer.*: cannot be written \(no space left on device\)"):
        write_artifact(tmp_path / "m.ninfer", artifact(), max_file_bytes=32768)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, way: str):
    def read() -> list[memoryview]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_artifact(tmp_path / "m.ninfer", artifact(read), max_file_bytes=32768)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_publishing_takes_the_parts_back(tmp_path: Path, way: str, monkeypatch):
    published = staged.StagedFile.publish

    def publish(self: staged.StagedFile, *, replace: bool) -> None:
        if self.target.name == "m.ninfer":
            raise KeyboardInterrupt
        published(self, replace=replace)
        assert self.target.exists()

    monkeypatch.setattr(staged.StagedFile, "publish", publish)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(tmp_path / "m.ninfer", artifact(), max_file_bytes=32768)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs nameless files")
def test_even_a_killed_process_leaves_nothing(tmp_path: Path):
    code = (
        "import time\n"
        "from pathlib import Path\n"
        "from ninfer_core.weights.staged import StagedFile\n"
        f"file = StagedFile(Path({str(tmp_path)!r}) / 'm.ninfer')\n"
        "file.write(bytes(1 << 20)); print('written', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
