import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_gguf
from ninfer_core.api import ArtifactError
from ninfer_core.testing import ImporterContract
from ninfer_gguf.reader import read

IMPORTER = ninfer_gguf.ninfer_importers()[0]
SCALARS = {
    "u8": (np.uint8(7), "add_uint8"),
    "i8": (np.int8(-7), "add_int8"),
    "u16": (np.uint16(700), "add_uint16"),
    "i16": (np.int16(-700), "add_int16"),
    "u32": (np.uint32(70000), "add_uint32"),
    "i32": (np.int32(-70000), "add_int32"),
    "u64": (np.uint64(1 << 40), "add_uint64"),
    "i64": (np.int64(-(1 << 40)), "add_int64"),
}


def write_model(path, *, blocks=True):
    """A file of the gguf package's own writer, with every kind of metadata and several tensor types."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    for key, (value, method) in SCALARS.items():
        getattr(writer, method)(f"test.{key}", int(value))
    writer.add_float32("test.f32", 0.5)
    writer.add_float64("test.f64", 0.25)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "zwölf")
    writer.add_array("test.strings", ["a", "", "é"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_array("test.floats", [0.5, 1.5])
    writer.add_array("test.flags", [True, False])
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    writer.add_tensor("half", np.ones((2, 4), dtype=np.float16))
    if blocks:
        data = np.arange(3 * 2 * 34, dtype=np.uint8).reshape(3, 68)
        writer.add_tensor("matrix", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def container(entries=(), tensors=(), *, magic=b"GGUF", version=3, counts=None, tail=b"\0" * 4096):
    """A file by hand. entries: (key, type, bytes); tensors: (name, dims, type, offset)."""
    named, directory = len(tensors), b""
    for name, dims, kind, offset in tensors:
        directory += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    metadata = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in entries)
    header = magic + struct.pack("<IQQ", version, *(counts or (named, len(entries))))
    body = header + metadata + directory
    return body + b"\0" * (-len(body) % 32) + tail


ARCHITECTURE = ("general.architecture", 8, text("llama"))
GOOD_TENSOR = ("t", (32, 4), 8, 0)
REFUSED = {
    "empty": (b"", "empty"),
    "another kind of file": (b"PK\3\4" + b"\0" * 100, "not a GGUF file"),
    "only the magic": (b"GGUF", "truncated"),
    "big-endian magic": (b"FUGG" + b"\0" * 60, "big-endian"),
    "big-endian version": (container(version=3 << 24), "big-endian"),
    "version 1": (container(version=1), "version 1"),
    "version 4": (container(version=4), "version 4"),
    "2^63 tensors": (container(counts=(1 << 63, 0)), "damaged header"),
    "2^40 metadata entries": (container(counts=(0, 1 << 40)), "damaged header"),
    "more entries than there are": (container([ARCHITECTURE], counts=(0, 1 << 15)), "GGUF|truncated|occurs twice"),
    "a string of 2^60 bytes": (container([("k", 8, struct.pack("<Q", 1 << 60))]), "truncated: metadata 'k'"),
    "a name of 2^40 bytes": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40) + b"x" * 99, "at most"),
    "an array of 2^50 items": (container([("k", 9, struct.pack("<IQ", 4, 1 << 50))]), "at most"),
    "an array beyond the end": (container([("k", 9, struct.pack("<IQ", 10, 1 << 20))]), "truncated"),
    "strings beyond the end": (container([("k", 9, struct.pack("<IQ", 8, 1 << 20))]), "truncated"),
    "an array of arrays": (container([("k", 9, struct.pack("<IQ", 9, 1))]), "array of value type 9"),
    "an unknown value type": (container([("k", 99, b"")]), "value type 99"),
    "a key twice": (container([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' occurs twice"),
    "a key that is not UTF-8": (container([(b"\xff", 0, b"\0")]), "not UTF-8"),
    "one part of a split file": (container([ARCHITECTURE, ("split.count", 2, struct.pack("<H", 3))]), "split"),
    "an alignment of 33": (container([("general.alignment", 4, struct.pack("<I", 33))]), "power of two"),
    "an alignment of 0": (container([("general.alignment", 4, struct.pack("<I", 0))]), "power of two"),
    "no architecture": (container([]), "general.architecture"),
    "a rank of 5": (container([ARCHITECTURE], [("t", (1, 1, 1, 1, 1), 0, 0)]), "rank 5"),
    "a rank of 2^32-1": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + b"\xff" * 64,
        "rank 4294967295",
    ),
    "a dimension of 0": (container([ARCHITECTURE], [("t", (0, 4), 0, 0)]), "impossible shape"),
    "2^120 elements": (container([ARCHITECTURE], [("t", (1 << 60, 1 << 60), 0, 0)]), "impossible shape"),
    "half a block": (container([ARCHITECTURE], [("t", (48, 2), 8, 0)]), "whole number of blocks"),
    "an unknown tensor type": (container([ARCHITECTURE], [("t", (32,), 200, 0)]), "type 200"),
    "a type we lack": (container([ARCHITECTURE], [("t", (256, 1), 10, 0)]), "Q2_K"),
    "an offset off the alignment": (container([ARCHITECTURE], [("t", (32,), 0, 4)]), "alignment 32"),
    "an offset beyond the end": (container([ARCHITECTURE], [("t", (32,), 0, 1 << 40)]), "truncated: tensor 't'"),
    "a tensor beyond the end": (container([ARCHITECTURE], [("t", (1 << 20,), 0, 0)]), "truncated: tensor 't'"),
    "a tensor twice": (container([ARCHITECTURE], [GOOD_TENSOR, GOOD_TENSOR]), "'t' occurs twice"),
    "overlapping tensors": (container([ARCHITECTURE], [GOOD_TENSOR, ("u", (32, 4), 8, 32)]), "overlap"),
}


class TestGGUFImporter(ImporterContract):
    importer = IMPORTER

    def good(self, directory):
        return write_model(directory / "model.gguf")

    def bad(self, directory):
        paths = {}
        for number, (what, (raw, _)) in enumerate(REFUSED.items()):
            path = directory / f"bad{number}.gguf"
            path.write_bytes(raw)
            paths[what] = str(path)
        return paths


@pytest.mark.parametrize(("raw", "said"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_file_is_refused_by_what_is_wrong(raw, said, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(ArtifactError, match=said) as refusal:
        IMPORTER.open(str(path))
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


def test_every_kind_of_metadata_comes_through(tmp_path):
    found = read(write_model(tmp_path / "m.gguf")).metadata
    for key, (value, _) in SCALARS.items():
        assert found[f"test.{key}"] == value
    assert found["test.f32"] == 0.5
    assert found["test.f64"] == 0.25
    assert found["test.bool"] is True
    assert found["test.string"] == "zwölf"
    assert found["test.strings"] == ["a", "", "é"]
    assert found["test.numbers"] == [1, 2, 3]
    assert found["test.floats"] == [0.5, 1.5]
    assert found["test.flags"] == [True, False]


def test_tensors_are_the_ones_the_gguf_package_reads(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    source = IMPORTER.open(path)
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert source.name == "m"
    assert list(source.tensors) == list(expected)
    for name, tensor in source.tensors.items():
        assert tensor.shape == tuple(int(n) for n in reversed(expected[name].shape))
        assert tensor.read().data.numpy().tobytes() == expected[name].data.tobytes()
    assert [tensor.format for tensor in source.tensors.values()] == ["fp32", "fp16", "gguf_q8_0"]


def test_reading_does_not_change_the_file(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    before = (tmp_path / "m.gguf").read_bytes()
    IMPORTER.open(path).tensors["norm"].read().data.fill_(255)
    assert (tmp_path / "m.gguf").read_bytes() == before


def test_a_file_is_known_by_its_magic_whatever_its_name(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(container([ARCHITECTURE]))
    assert IMPORTER.claims(str(path))
    assert IMPORTER.open(str(path)).architecture == "llama"
    path.write_bytes(b"GGML" + b"\0" * 100)
    assert not IMPORTER.claims(str(path))


def test_version_2_reads_like_version_3(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(container([ARCHITECTURE], [GOOD_TENSOR], version=2))
    assert IMPORTER.open(str(path)).tensors["t"].shape == (4, 32)


def test_an_alignment_moves_the_data(tmp_path):
    path = tmp_path / "m.gguf"
    body = container([ARCHITECTURE, ("general.alignment", 4, struct.pack("<I", 256))], [("t", (4,), 0, 256)], tail=b"")
    data = struct.pack("<4f", 1, 2, 3, 4)
    path.write_bytes(body + b"\0" * (-len(body) % 256) + b"\0" * 256 + data)
    assert IMPORTER.open(str(path)).tensors["t"].read().data.numpy().tobytes() == data


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    return folder, (folder, write_model(folder / "whole.gguf"))[1]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_change_of_a_few_bytes_does_more_than_be_refused(whole, data):
    folder, path = whole
    raw = bytearray(Path(path).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # the directory lies before the data: damage there is what matters
        at = data.draw(st.integers(0, len(raw) - 400))
        raw[at] = data.draw(st.integers(0, 255))
    target = folder / "changed.gguf"
    target.write_bytes(raw[: data.draw(st.integers(0, len(raw))) or None])
    try:
        source = IMPORTER.open(str(target))
    except ArtifactError as error:
        assert "\n" not in str(error)
        return
    for tensor in source.tensors.values():
        assert tensor.read().data.numel() <= len(raw)
