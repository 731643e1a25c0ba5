"""Bytes of the container, pinned (``spec/artifact.md`` §21, V1-V4)."""

import hashlib
from pathlib import Path

import pytest
import torch

from ninfer_core.api import EncodedTensor
from ninfer_core.weights.container import Container, check_header
from ninfer_core.weights.formats import FORMATS
from ninfer_core.weights.layout_plan import NewArtifact, NewResource, NewTensor, cut
from ninfer_core.weights.writer import write_artifact

V1_HEADER = bytes.fromhex("4e494e4645520003e00f000000000000000102030405060708090a0b0c0d0e0f")
V2_SHA256 = "b587d8dc4929f34cd596f02223fad0ee4481bb65750dd62dce66fa9757e94b5d"
BF16, FP32, INT32 = FORMATS


def v2() -> NewArtifact:
    words = bytes.fromhex("0000803f000000c00000003f")
    return NewArtifact(
        components={"text": {"config": {}}},
        resources=[NewResource(id="r", data=b"hi")],
        tensors=[
            NewTensor(
                id="w",
                shape=(3,),
                format="fp32",
                layout="contiguous_le_v1",
                bytes=12,
                read=lambda: [memoryview(words)],
            )
        ],
        bindings={"text/final_norm": {"object": "w"}},
    )


def test_the_header_states_the_directory_length():
    assert check_header(memoryview(V1_HEADER + bytes(4064)), "F") == 4064


def test_the_writer_writes_the_known_file_byte_for_byte(tmp_path: Path):
    (path,) = write_artifact(tmp_path / "v2.ninfer", v2(), artifact_id=bytes(range(16)))
    data = path.read_bytes()
    assert data[:32] == V1_HEADER
    assert (len(data), hashlib.sha256(data).hexdigest()) == (4364, V2_SHA256)


def test_the_reader_reads_the_known_file(tmp_path: Path):
    (path,) = write_artifact(tmp_path / "v2.ninfer", v2(), artifact_id=bytes(range(16)))
    with Container(str(path)) as container:
        assert container.artifact_id.hex() == "000102030405060708090a0b0c0d0e0f"
        assert bytes(container.object_bytes("r")) == b"hi"
        data = torch.frombuffer(bytearray(container.object_bytes("w")), dtype=torch.uint8)
    stored = EncodedTensor(format="fp32", layout="contiguous_le_v1", shape=(3,), data=data)
    assert FP32.decode(stored).tolist() == [1.0, -2.0, 0.5]


def test_a_limit_cuts_the_payload_into_pages():
    assert cut(50_000, 32 + 4064, 20_000) == [12288, 12288, 12288, 12288, 848]


def test_part_files_have_the_known_names_and_sizes(tmp_path: Path):
    payload = bytes(range(250)) * 200
    new = NewArtifact(
        components={"text": {"config": {}}},
        resources=[NewResource(id="r", data=payload)],
        tensors=[],
        bindings={},
    )
    files = write_artifact(tmp_path / "big.ninfer", new, max_file_bytes=20_000)
    assert [file.name for file in files] == ["big.ninfer", *(f"big.ninfer.part-000{i}" for i in range(1, 5))]
    assert [file.stat().st_size for file in files] == [16384, 16384, 16384, 16384, 4944]
    with Container(str(files[0])) as container:
        assert bytes(container.object_bytes("r")) == payload
        # inside one slice, across a seam, up to the end, nothing at the end
        for offset, size in [(0, 10), (12_280, 20), (12_288, 12_288), (30_000, 20_000), (50_000, 0)]:
            assert bytes(container.read_range(offset, size)) == payload[offset : offset + size]


@pytest.mark.parametrize(
    ("word", "value"),
    [(0x3F80, 1.0), (0x8000, -0.0), (0x0001, 2.0**-133), (0x7F80, float("inf"))],
    ids=["one", "minus zero", "subnormal", "infinity"],
)
def test_bf16_words_are_the_high_halves_of_fp32(word: int, value: float):
    data = torch.tensor([word & 255, word >> 8], dtype=torch.uint8)
    decoded = BF16.decode(EncodedTensor(format="bf16", layout="contiguous_le_v1", shape=(), data=data))
    expected = torch.tensor(value)
    assert decoded.shape == ()
    assert decoded.view(torch.int32) == expected.view(torch.int32)
