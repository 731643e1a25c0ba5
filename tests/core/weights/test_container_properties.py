"""Any artifact survives the trip to disk, and no damage ends in anything but an ArtifactError."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError
from ninfer_core.cli.inspect import lines
from ninfer_core.plugins import Plugins
from ninfer_core.weights.container import Container
from ninfer_core.weights.directory import TensorObject
from ninfer_core.weights.inspection import inspect_model
from ninfer_core.weights.layout_plan import NewArtifact, NewResource, NewTensor
from ninfer_core.weights.writer import write_artifact

IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def artifacts(draw: st.DrawFn) -> NewArtifact:
    ids = draw(st.lists(IDS, min_size=1, max_size=8, unique=True))
    resources, tensors = [], []
    for name in ids:
        if draw(st.booleans()):
            resources.append(NewResource(id=name, data=draw(st.binary(min_size=1, max_size=5000))))
            continue
        shape = draw(SHAPES)
        size = 4
        for n in shape:
            size *= n
        data = draw(st.binary(min_size=size, max_size=size))
        tensors.append(
            NewTensor(
                id=name,
                shape=shape,
                format="fp32",
                layout="contiguous_le_v1",
                bytes=size,
                read=lambda data=data: [memoryview(data)],
            )
        )
    bindings = {f"p/{t.id}": {"object": t.id} for t in tensors}
    return NewArtifact(
        components={
            "text": {
                "config": draw(st.dictionaries(IDS, JSON, max_size=3)),
                "resources": {r.id: r.id for r in resources},
            }
        },
        resources=resources,
        tensors=tensors,
        bindings=bindings,
        uses=[{"parameter": p, "input": "x", "activation_policy": "AllowA8"} for p in bindings],
        metadata={"name": draw(IDS)},
        provenance=draw(st.dictionaries(IDS, JSON, max_size=2)),
    )


@given(new=artifacts(), pages=st.none() | st.integers(3, 6))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(new: NewArtifact, pages: int | None):
    with tempfile.TemporaryDirectory() as folder:
        files = write_artifact(Path(folder) / "a.ninfer", new, max_file_bytes=pages and pages * 4096)
        assert sorted(Path(folder).iterdir()) == sorted(files)
        with Container(str(files[0])) as container:
            directory = container.directory
            assert directory.components["text"].config == new.components["text"]["config"]
            assert (directory.metadata, directory.provenance) == (new.metadata, new.provenance)
            assert {use.parameter for use in directory.uses} == set(new.bindings)
            for resource in new.resources:
                assert container.resource("text", resource.id) == resource.data
            for tensor in new.tensors:
                stored = directory.objects[tensor.id]
                assert isinstance(stored, TensorObject) and stored.shape == tensor.shape
                assert stored.offset % 256 == 0
                assert bytes(container.object_bytes(tensor.id)) == bytes(tensor.read()[0])


WHOLE = NewArtifact(
    components={
        "text": {
            "config": {"architectures": ["ToyForCausalLM"], "vocab_size": 2, "width": 2},
            "resources": {"chat_template.jinja": "r"},
        }
    },
    resources=[NewResource(id="r", data=b"hello")],
    tensors=[
        NewTensor(
            id="w",
            shape=(2, 2),
            format="fp32",
            layout="contiguous_le_v1",
            bytes=16,
            read=lambda: [memoryview(bytes(16))],
        )
    ],
    bindings={
        "text/token_embedding": {"object": "w"},
        "text/final_norm": {"parts": [{"object": "w", "range": [0, 2]}]},
        "text/output_head": {"parts": [{"object": "w", "range": [0, 2]}, {"object": "w", "range": [2, 4]}]},
    },
    uses=[{"parameter": "text/output_head", "input": "i", "auxiliaries": {"d": {"object": "w"}}}],
    metadata={"name": "m"},
)


@given(changes=st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes_end_in_a_report_or_an_artifact_error(plugins: Plugins, changes: list[tuple[int, int]]):
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write_artifact(Path(folder) / "a.ninfer", WHOLE, artifact_id=bytes(16))
        data = bytearray(path.read_bytes())
        for at, value in changes:
            data[at] = value
        path.write_bytes(data)
        try:
            report = inspect_model(str(path), plugins)
        except ArtifactError as error:
            assert str(error).startswith(str(path.parent)) and "\n" not in str(error)
            return
        assert msgspec.json.encode(report)
        assert all("\n" not in line for line in lines(report))
        assert all("\n" not in refusal for refusal in report.refusals)
