"""Bindings, ranges and the checks made when an object is interpreted (§3.5, §20 rows 24-27, 33, 36, 39, 44)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer_core.api import ArtifactError, WeightFormat
from ninfer_core.registry import Registry
from ninfer_core.weights.artifact import ArtifactCheckpoint
from ninfer_core.weights.checkpoint import checkpoint_facts
from ninfer_core.weights.container import Container
from ninfer_core.weights.formats import encoded, take_rows
from ninfer_core.weights.layout_plan import NewArtifact, NewResource, NewTensor
from ninfer_core.weights.writer import write_artifact

CONFIG = {"architectures": ["ToyForCausalLM"], "vocab_size": 3, "width": 4}
W = torch.arange(24.0).view(6, 4)


def parts(*ranges: tuple[str, int, int]) -> dict[str, Any]:
    return {"parts": [{"object": name, "range": [begin, end]} for name, begin, end in ranges]}


def tensor(name: str, x: torch.Tensor, **changes: Any) -> NewTensor:
    data = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    form = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "int32"}[x.dtype]
    base = NewTensor(
        id=name,
        shape=tuple(x.shape),
        format=form,
        layout="contiguous_le_v1",
        bytes=len(data),
        read=lambda: [memoryview(data)],
    )
    return replace(base, **changes)


@pytest.fixture
def make(tmp_path: Path, formats: Registry[WeightFormat]) -> Callable[..., ArtifactCheckpoint]:
    """A checkpoint around fp32 object ``w`` [6, 4], bf16 object ``h`` [6, 4] and bindings."""

    def build(bindings: dict[str, Any] | None = None, limit: int | None = None, **changes: Any) -> ArtifactCheckpoint:
        new = NewArtifact(
            components={"text": {"config": CONFIG, "resources": {"tokenizer.json": "t"}}},
            resources=[NewResource(id="t", data=b'{"a": 1}')],
            tensors=[tensor("w", W), tensor("h", W.bfloat16())],
            bindings={"p": {"object": "w"}} if bindings is None else bindings,
        )
        files = write_artifact(tmp_path / "m.ninfer", replace(new, **changes), max_file_bytes=limit, replace=True)
        return ArtifactCheckpoint(Container(str(files[0])), formats)

    return build


def decoded(checkpoint: ArtifactCheckpoint, name: str, shape: tuple[int, ...]) -> list[list[float]]:
    found = checkpoint.parameter(name, shape)
    unread = checkpoint.pieces(name, shape)
    assert [(t.shape, t.format, t.data.numel()) for t in found] == [(p.shape, p.format, p.bytes) for p in unread]
    return [checkpoint._formats[t.format].decode(t).flatten().tolist() for t in found]


def refusal(checkpoint: ArtifactCheckpoint, name: str, shape: tuple[int, ...]) -> str:
    with pytest.raises(ArtifactError) as caught:
        checkpoint.parameter(name, shape)
    return str(caught.value).removeprefix(f"{checkpoint.path}: ")


def test_an_object_binding_is_the_object(make):
    checkpoint = make()
    assert decoded(checkpoint, "p", (6, 4)) == [W.flatten().tolist()]
    assert list(checkpoint.names()) == ["p"] and checkpoint.has("p") and not checkpoint.has("q")
    assert (checkpoint.architecture, checkpoint.name, checkpoint.config) == ("ToyForCausalLM", None, CONFIG)


def test_whole_rows_of_several_objects_are_parts_in_order(make):
    checkpoint = make({"p": parts(("w", 4, 12), ("h", 0, 24), ("w", 20, 24))})
    flat = W.flatten().tolist()
    assert decoded(checkpoint, "p", (9, 4)) == [flat[4:12], flat, flat[20:]]


def test_a_single_part_may_take_another_shape(make):
    checkpoint = make({"p": parts(("w", 0, 24)), "q": parts(("w", 3, 4)), "r": parts(("h", 5, 15))})
    assert checkpoint.parameter("p", (2, 3, 4))[0].shape == (2, 3, 4)
    assert decoded(checkpoint, "q", ()) == [[3.0]]
    assert decoded(checkpoint, "r", (2, 5)) == [W.flatten().tolist()[5:15]]


def test_ranges_that_cut_rows_of_a_direct_format_are_joined(make):
    checkpoint = make({"p": parts(("w", 0, 3), ("w", 10, 15))})
    flat = W.flatten().tolist()
    assert decoded(checkpoint, "p", (2, 4)) == [flat[0:3] + flat[10:15]]
    mixed = make({"p": parts(("w", 0, 3), ("h", 10, 15))})
    assert refusal(mixed, "p", (2, 4)) == 'parameter "p": parts of several formats share a row'


def test_names_may_share_an_object_and_facts_count_it_once(make):
    checkpoint = make({"p": {"object": "w"}, "q": {"object": "w"}, "r": parts(("h", 0, 4))})
    assert checkpoint.pieces("p", (6, 4))[0].key == checkpoint.pieces("q", (6, 4))[0].key
    facts = checkpoint_facts(checkpoint)
    assert (facts.parameters, facts.weight_bytes, facts.formats) == (48, 144, {"fp32": 96, "bf16": 48})


def test_an_object_across_files_is_put_together(make):
    big = torch.arange(8192.0).view(64, 128)
    checkpoint = make(tensors=[tensor("w", big)], limit=16384)
    assert decoded(checkpoint, "p", (64, 128)) == [big.flatten().tolist()]


def test_a_parameter_that_is_missing_or_misshapen_is_named(make):
    checkpoint = make({"p": {"object": "w"}, "q": parts(("w", 0, 8))})
    assert refusal(checkpoint, "z", (6, 4)) == 'missing parameter "z"'
    assert refusal(checkpoint, "q", (6, 4)) == 'parameter "q": needs shape [6, 4], artifact provides 8 elements'
    # as many elements, but the object form promises the shape too
    assert refusal(checkpoint, "p", (4, 6)) == (
        'parameter "p": needs shape [4, 6], artifact provides 24 elements as [6, 4]'
    )


@pytest.fixture
def rows_only(formats: Registry[WeightFormat]) -> Registry[WeightFormat]:
    """The direct formats and ``pairs``: a matrix format whose rows cannot be cut, two bytes a block of two."""

    def size(shape: tuple[int, ...]) -> int:
        if len(shape) != 2 or shape[1] % 2:
            raise ValueError("matrices of an even width")
        return shape[0] * shape[1]

    pairs = WeightFormat(
        name="pairs",
        layout="pairs_v1",
        encoded_bytes=size,
        decode=lambda t: t.data.float().view(t.shape),
        take_rows=take_rows,
        published=False,
    )
    formats.add("pairs", pairs, origin="test")
    return formats


def pair_tensor(shape: tuple[int, ...] = (6, 4), size: int = 24, **changes: Any) -> NewTensor:
    data = bytes(range(size))
    base = NewTensor(
        id="w", shape=shape, format="pairs", layout="pairs_v1", bytes=size, read=lambda: [memoryview(data)]
    )
    return replace(base, **changes)


def test_a_block_format_gives_whole_rows_only(make, rows_only):
    checkpoint = make(
        {"p": parts(("w", 4, 12)), "q": parts(("w", 2, 10)), "r": parts(("w", 0, 24))}, tensors=[pair_tensor()]
    )
    assert decoded(checkpoint, "p", (2, 4)) == [list(range(4, 12))]
    assert refusal(checkpoint, "q", (2, 4)) == ('parameter "q": range [2,10] of w [6, 4] is not whole rows of [2, 4]')
    assert refusal(checkpoint, "r", (3, 8)) == ('parameter "r": range [0,24] of w [6, 4] is not whole rows of [3, 8]')


def test_an_unknown_format_or_layout_is_refused_when_it_is_needed(make):
    checkpoint = make(tensors=[tensor("w", W, format="exl3")])
    assert refusal(checkpoint, "p", (6, 4)) == 'w: format "exl3" with layout "contiguous_le_v1" is not supported'
    checkpoint = make(tensors=[tensor("w", W, layout="row_scale_v1")])
    assert refusal(checkpoint, "p", (6, 4)) == 'w: format "fp32" with layout "row_scale_v1" is not supported'


def test_a_wrong_size_is_refused(make):
    checkpoint = make(tensors=[tensor("w", W, shape=(5, 4))])
    assert refusal(checkpoint, "p", (5, 4)) == "w: expected 80 bytes at 256-byte alignment, got bytes=96, offset=256"


def test_a_shape_the_layout_cannot_hold_is_refused(make, rows_only):
    checkpoint = make(tensors=[pair_tensor((8, 3))])
    assert refusal(checkpoint, "p", (8, 3)) == (
        "w: layout pairs_v1 cannot hold shape [8, 3] (matrices of an even width)"
    )


def test_a_misaligned_object_is_refused(write_entry, directory, formats):
    directory["components"]["text"]["config"] = CONFIG
    directory["objects"][1]["offset"] = 255
    checkpoint = ArtifactCheckpoint(Container(str(write_entry(directory))), formats)
    assert refusal(checkpoint, "text/final_norm", (3,)) == (
        "w: expected 12 bytes at 256-byte alignment, got bytes=12, offset=255"
    )


def test_divisors_of_a_format_without_them_are_refused(write_entry, directory, formats):
    directory["components"]["text"]["config"] = CONFIG
    directory["objects"][1]["divisors"] = 2
    checkpoint = ArtifactCheckpoint(Container(str(write_entry(directory))), formats)
    assert refusal(checkpoint, "text/final_norm", (3,)) == "w: invalid divisor count 2"


def test_an_auxiliary_that_changes_the_matrix_is_never_ignored(make):
    reasons = {
        "novel": "is not supported",
        "hadamard_signs": "is not supported here",
        "input_columns": "is supported for gguf formats only",
    }
    for role, reason in reasons.items():
        checkpoint = make(uses=[{"parameter": "p", "input": "i", "auxiliaries": {role: {"object": "h"}}}])
        assert refusal(checkpoint, "p", (6, 4)) == f'Use p@i: auxiliary "{role}" {reason}'
    harmless = {"activation_input_divisor": parts(("w", 3, 4))}
    checkpoint = make(uses=[{"parameter": "p", "input": "i", "auxiliaries": harmless}])
    assert len(checkpoint.parameter("p", (6, 4))) == 1


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ({"mtp": {"config": {}}}, "no text component"),
        ({"ngram": {"config": {}}}, "no text component; this is an n-gram table artifact"),
        ({"text": {"config": {}}}, 'text config: missing member "architectures"'),
        ({"text": {"config": {"architectures": []}}}, "text config: architectures must be a list of one name"),
        ({"text": {"config": {"architectures": "A"}}}, "text config: architectures must be a list of one name"),
    ],
)
def test_an_artifact_without_a_text_model_is_refused(make, components, text: str):
    with pytest.raises(ArtifactError) as caught:
        make(components=components)
    assert str(caught.value).endswith(f"m.ninfer: {text}")


@pytest.mark.parametrize(
    ("role", "data", "text"),
    [
        ("tokenizer.json", b"[]", 'text: resource "tokenizer.json" is not a JSON object'),
        ("tokenizer.json", b'{"a":', 'text: resource "tokenizer.json" is not a JSON object'),
        ("chat_template.jinja", b"a\xff", 'text: resource "chat_template.jinja" is not UTF-8 (byte 1)'),
    ],
)
def test_a_resource_that_is_not_what_its_role_says_is_refused(make, role: str, data: bytes, text: str):
    components = {"text": {"config": CONFIG, "resources": {role: "t"}}}
    checkpoint = make(components=components, resources=[NewResource(id="t", data=data)])
    with pytest.raises(ArtifactError) as caught:
        checkpoint.resource(role)
    assert str(caught.value) == f"{checkpoint.path}: {text}"


def test_resources_come_as_stored(make):
    checkpoint = make()
    assert checkpoint.resource("tokenizer.json") == b'{"a": 1}'
    assert checkpoint.resource("chat_template.jinja") is None
    assert checkpoint.resources() == {"tokenizer.json": 8}


def test_tensors_outlive_the_checkpoint(make):
    checkpoint = make()
    (stored,) = checkpoint.parameter("p", (6, 4))
    checkpoint.close()
    assert torch.equal(stored.data.view(torch.float32).view(6, 4), W)
    del stored
    assert checkpoint.path not in Path("/proc/self/maps").read_text()


def test_writing_into_a_tensor_never_reaches_the_file(make):
    checkpoint = make()
    before = Path(checkpoint.path).read_bytes()
    checkpoint.parameter("p", (6, 4))[0].data.zero_()
    assert Path(checkpoint.path).read_bytes() == before


def test_a_large_directory_opens_in_seconds(tmp_path: Path, formats):
    count = 20_000
    record = {"kind": "tensor", "shape": [1], "format": "fp32", "layout": "contiguous_le_v1", "bytes": 4}
    root = {
        "components": {"text": {"config": CONFIG}},
        "objects": [{**record, "id": f"weight/{i:06d}", "offset": 256 * i} for i in range(count)],
        "bindings": {f"text/{i}": {"object": f"weight/{i:06d}"} for i in range(count)},
        "uses": [{"parameter": f"text/{i}", "input": "x"} for i in range(count)],
        "files": [{"path": None, "payload_bytes": 256 * count}],
    }
    text = json.dumps(root).encode()
    reserve = -(-(32 + len(text)) // 4096) * 4096 - 32
    path = tmp_path / "m.ninfer"
    with open(path, "wb") as file:
        file.write(b"NINFER\0\3" + reserve.to_bytes(8, "little") + bytes(16) + text.ljust(reserve))
        file.truncate(32 + reserve + 256 * count)
    checkpoint = ArtifactCheckpoint(Container(str(path)), formats)
    assert sum(len(checkpoint.pieces(name, (1,))) for name in checkpoint.names()) == count
    assert encoded(torch.zeros(1), "fp32", (1,)).data.tolist() == checkpoint.parameter("text/7", (1,))[0].data.tolist()
