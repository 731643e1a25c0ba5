"""Headers, lengths and parts (``spec/artifact.md`` §20, rows 1-6, 14, 29-32), and files that are no files."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_core.api import ArtifactError
from ninfer_core.weights.container import Container
from ninfer_core.weights.layout_plan import NewArtifact, NewResource
from ninfer_core.weights.writer import write_artifact

PAYLOAD = bytes(range(256)) * 100
U64 = 18446744073709551615


def header(magic: bytes, length: int = 4064) -> bytes:
    return magic + length.to_bytes(8, "little") + bytes(16)


HEADERS = [
    ("1 empty", b"", "not a NInfer artifact (0 bytes; the v3 header needs 32)"),
    ("1 short", b"NINFER\0\3" + bytes(23), "not a NInfer artifact (31 bytes; the v3 header needs 32)"),
    ("2 version 1", header(b"NINFER\0\1"), "container version 1; upgrade it to version 3 first"),
    ("2 version 2", header(b"NINFER\0\2"), "container version 2; upgrade it to version 3 first"),
    ("3 version 0", header(b"NINFER\0\0"), "unsupported container version 0 (this reader supports 3)"),
    ("3 version 9", header(b"NINFER\0\x09"), "unsupported container version 9 (this reader supports 3)"),
    ("4 part", header(b"NINPRT\0\3"), "this is a continuation part; open its entry file"),
    ("5 GGUF", b"GGUF\3\0\0\0" + bytes(40), "not a NInfer artifact"),
    ("5 safetensors", b"\x40\0\0\0\0\0\0\0{}" + bytes(80), "not a NInfer artifact"),
    ("6 no directory", header(b"NINFER\0\3", 0), "directory length 0 is impossible for a file of 32 bytes"),
    ("6 beyond the file", header(b"NINFER\0\3", 1), "directory length 1 is impossible for a file of 32 bytes"),
    ("6 hostile", header(b"NINFER\0\3", U64), f"directory length {U64} is impossible for a file of 32 bytes"),
]


@pytest.mark.parametrize(("data", "text"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_a_wrong_header_is_refused(tmp_path: Path, data: bytes, text: str):
    path = tmp_path / "m.ninfer"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        Container(str(path))
    assert str(caught.value) == f"{path}: {text}"


def test_a_directory_above_the_cap_is_refused_without_reading_it(tmp_path: Path):
    path = tmp_path / "m.ninfer"
    with open(path, "wb") as file:
        file.write(header(b"NINFER\0\3", (1 << 30) + 1))
        file.truncate(4 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match="directory length 1073741825 is impossible"):
        Container(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("change", [-1, 1])
def test_a_truncated_or_longer_file_is_refused(write_entry, change: int):
    path = write_entry()
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"x")
    with pytest.raises(ArtifactError) as caught:
        Container(str(path))
    assert str(caught.value) == (
        f"{path}: file has {4364 + change} bytes, directory requires 4364 (truncated or damaged download?)"
    )


def test_every_truncation_is_an_artifact_error(write_entry):
    path = write_entry()
    data = path.read_bytes()
    text_end = 32 + len(data[32:4096].rstrip())
    for length in {0, 1, 7, 8, 15, 16, 31, 32, 33, *range(32, text_end, 11), text_end, 4095, 4096, 4097, 4352, 4363}:
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            Container(str(path))


def test_padding_content_is_ignored(write_entry, directory):
    # a directory that does not fill its page leaves padding before the payload
    path = write_entry()
    data = bytearray(path.read_bytes())
    text = data[32:4096].rstrip()
    data[8:16] = len(text).to_bytes(8, "little")
    data[32 + len(text) : 4096] = b"\xff" * (4096 - 32 - len(text))
    path.write_bytes(data)
    with Container(str(path)) as container:
        assert bytes(container.object_bytes("r")) == b"hi"


def test_a_folder_a_pipe_and_nothing_are_refused_at_once(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, text in [
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path / "no", "no such file"),
    ]:
        with pytest.raises(ArtifactError, match=text):
            Container(str(path))
    with pytest.raises(ArtifactError, match="not a file name"):
        Container("a\0b")


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """An entry and two parts that hold one resource ``r``."""
    resource_object = NewResource(id="r", data=PAYLOAD)
    new = NewArtifact(components={"text": {"config": {}}}, resources=[resource_object], tensors=[], bindings={})
    return list(write_artifact(tmp_path / "m.ninfer", new, max_file_bytes=16384))


def damage(part: Path, at: int, value: bytes) -> None:
    data = bytearray(part.read_bytes())
    data[at : at + len(value)] = value
    part.write_bytes(data)


def refusal(entry: Path) -> str:
    with Container(str(entry)) as container, pytest.raises(ArtifactError) as caught:
        container.object_bytes("r")
    return str(caught.value)


def test_a_part_that_is_not_needed_may_be_absent(split: list[Path]):
    for part in split[1:]:
        part.unlink()
    with Container(str(split[0])) as container:
        assert bytes(container.read_range(0, 100)) == PAYLOAD[:100]


def test_a_missing_part_is_named_with_what_it_holds(split: list[Path]):
    split[1].unlink()
    assert refusal(split[0]) == f'{split[0]}: part "m.ninfer.part-0001" (index 1) is missing; it holds r'


def test_a_part_with_another_magic_index_id_or_length_is_refused(split: list[Path]):
    entry, part = split[:2]
    good = part.read_bytes()
    wrong_id = bytes(16)
    damage(part, 0, b"NINPRT\0\2")
    assert refusal(entry) == f"{part}: not a part of a NInfer artifact"
    part.write_bytes(good)
    damage(part, 8, b"\x07")
    assert refusal(entry) == f"{part}: part index 7, expected 1"
    part.write_bytes(good)
    damage(part, 16, wrong_id)
    assert refusal(entry) == (
        f"{part}: belongs to another artifact (id {wrong_id.hex()}, expected {good[16:32].hex()})"
    )
    part.write_bytes(good[:-1])
    assert refusal(entry) == f"{part}: {len(good) - 1} bytes, expected {len(good)}"
    part.write_bytes(b"")
    assert refusal(entry) == f"{part}: not a part of a NInfer artifact"


def test_a_hostile_part_size_allocates_nothing(write_entry, directory):
    # the object claims an exabyte in a part that is a few bytes long
    huge = 1 << 60
    directory["files"].append({"path": "tail", "payload_bytes": huge})
    directory["objects"][1].update(bytes=huge, shape=[huge // 4])
    path = write_entry(directory)
    (path.parent / "tail").write_bytes(b"NINPRT\0\3" + (1).to_bytes(8, "little") + bytes(range(16)) + bytes(4064))
    with Container(str(path)) as container, pytest.raises(ArtifactError, match=f"4096 bytes, expected {huge + 4096}"):
        container.object_bytes("w")


@pytest.mark.parametrize(("offset", "size"), [(0, 269), (268, 1), (-1, 1), (U64, U64)])
def test_a_range_outside_the_payload_cannot_be_read(write_entry, offset: int, size: int):
    path = write_entry()
    with Container(str(path)) as container, pytest.raises(ArtifactError) as caught:
        container.read_range(offset, size)
    assert str(caught.value) == f"{path}: cannot read {size} bytes at payload offset {offset}"


def test_a_resource_in_another_encoding_is_refused_when_it_is_read(write_entry, directory):
    directory["objects"][0]["encoding"] = "zip"
    directory["components"]["text"]["resources"] = {"tokenizer.json": "r"}
    path = write_entry(directory)
    with Container(str(path)) as container:
        assert container.resource("text", "other") is None
        with pytest.raises(ArtifactError) as caught:
            container.resource("text", "tokenizer.json")
    assert str(caught.value) == f'{path}: r: resource encoding "zip" is not supported'


def test_closing_gives_the_map_back(write_entry):
    path = write_entry()
    container = Container(str(path))
    assert str(path) in Path("/proc/self/maps").read_text()
    container.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_bytes_in_use_outlive_the_container(write_entry):
    path = write_entry()
    container = Container(str(path))
    view = container.object_bytes("r")
    container.close()
    assert bytes(view) == b"hi"
    view.release()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_opening_a_huge_file_needs_little_memory_and_no_torch(tmp_path: Path):
    path = tmp_path / "huge.ninfer"
    size = 64 << 30
    weight = {"id": "w", "kind": "tensor", "shape": [size // 4], "format": "fp32", "layout": "contiguous_le_v1"}
    root = {
        "components": {"text": {"config": {}}},
        "objects": [{**weight, "offset": 0, "bytes": size}],
        "bindings": {"w": {"object": "w"}},
        "uses": [],
        "files": [{"path": None, "payload_bytes": size}],
    }
    text = json.dumps(root).encode()
    with open(path, "wb") as file:
        file.write(header(b"NINFER\0\3") + text.ljust(4064))
        file.truncate(4096 + size)
    code = (
        "import resource, sys\n"
        "from ninfer_core.weights.container import Container\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"c = Container({str(path)!r}); bytes(c.read_range({size - 8}, 8))\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
