"""Objects, bindings and Uses that a reader has to refuse (``spec/artifact.md`` §20 rows 24-28, 36-43), on real formats.

Rows 1-6, 14 and 29-32 are in ``test_container_refusals``, 7-23 in ``test_directory_refusals``, 33, 34 and 44-45 in
``test_artifact_checkpoint`` and ``test_open_checkpoint``, 49 in ``test_artifact_writer``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer_core.api import ArtifactError, KVGeometry, ModelFamily
from ninfer_core.testing import compose
from ninfer_core.weights.artifact import ArtifactCheckpoint
from ninfer_core.weights.checkpoint import bind
from ninfer_core.weights.container import Container
from ninfer_core.weights.directory import TensorObject
from ninfer_core.weights.proposal import require_head, stated_head, token_ids
from ninfer_core.weights.rules import component_of

CONFIG = {"architectures": ["ToyForCausalLM"]}
ROWS, COLUMNS = 256, 1024
HEAD = "text/output_head"
TABLE = "text/token_embedding"
PROJECTION = "text/layers/0/mlp/gate"


@pytest.fixture(scope="module")
def formats():
    return compose({"gguf", "groupwise_int", "row_fp8", "nvfp4"}).weight_formats


def stored(formats, name: str, form: str, shape: tuple[int, ...], seed: int = 1) -> tuple[dict[str, Any], bytes]:
    """An object and its bytes."""
    kind = formats[form]
    if kind.quantize is not None:
        data = kind.quantize(torch.randn(shape, generator=torch.Generator().manual_seed(seed))).data
    else:
        data = torch.zeros(kind.encoded_bytes(shape), dtype=torch.uint8)
    record = {"id": name, "kind": "tensor", "shape": list(shape), "format": form, "layout": kind.layout}
    return record | {"bytes": data.numel()}, data.numpy().tobytes()


def direct(name: str, x: torch.Tensor) -> tuple[dict[str, Any], bytes]:
    form = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "int32"}[x.dtype]
    data = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    record = {"id": name, "kind": "tensor", "shape": list(x.shape), "format": form, "layout": "contiguous_le_v1"}
    return record | {"bytes": len(data)}, data


@pytest.fixture
def artifact(tmp_path: Path, formats) -> Callable[..., ArtifactCheckpoint]:
    """A checkpoint around these objects, bindings and Uses, each name bound to the object of that name."""

    def build(objects, bindings=None, uses=None, change=lambda root: None, components=None, **text):
        payload, records = b"", []
        for record, data in objects:
            payload += bytes(-len(payload) % 256)
            records.append({**deepcopy(record), "offset": len(payload)})
            payload += data
        root = {
            "components": {"text": {"config": CONFIG, **text}, **(components or {})},
            "objects": records,
            "bindings": bindings
            if bindings is not None
            else {record["id"]: {"object": record["id"]} for record in records if record["kind"] == "tensor"},
            "uses": uses or [],
            "files": [{"path": None, "payload_bytes": len(payload)}],
        }
        change(root)
        path = tmp_path / "m.ninfer"
        path.write_bytes(entry(root, payload))
        return ArtifactCheckpoint(Container(str(path)), formats)

    return build


def entry(root: dict[str, Any], payload: bytes) -> bytes:
    text = json.dumps(root).encode()
    reserve = -(-(32 + len(text)) // 4096) * 4096 - 32
    return b"NINFER\0\3" + reserve.to_bytes(8, "little") + bytes(16) + text.ljust(reserve) + payload


def refusal(checkpoint: ArtifactCheckpoint, name: str, shape: tuple[int, ...]) -> str:
    with pytest.raises(ArtifactError) as caught:
        checkpoint.parameter(name, shape)
    return str(caught.value).removeprefix(f"{checkpoint.path}: ")


def put(member: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda root: root["objects"][0].__setitem__(member, value)


OBJECTS = [
    pytest.param(
        "q4_g64_fp16",
        (2, 64),
        put("layout", "row_scale_v1"),
        'w: format "q4_g64_fp16" with layout "row_scale_v1" is not supported',
        id="24 another format's layout",
    ),
    pytest.param(
        "q4_g64_fp16",
        (2, 64),
        put("format", "q4_g32_fp16_rows"),
        'w: format "q4_g32_fp16_rows" with layout "row_split_k128_v1" is not supported',
        id="24 a format of another line",
    ),
    pytest.param(
        "q5_g64_fp16",
        (2, 130),
        put("shape", [2, 64]),
        "w: expected 520 bytes at 256-byte alignment, got bytes=528, offset=0",
        id="25 encoded size",
    ),
    pytest.param(
        "q8_g32_fp16",
        (2, 64),
        put("shape", [128]),
        "w: layout row_split_k128_v1 cannot hold shape [128]",
        id="26 rank of a groupwise matrix",
    ),
    pytest.param(
        "fp8_e4m3fn_row_fp16",
        (2, 64),
        put("shape", [1, 2, 64]),
        "w: layout row_interleaved_v1 cannot hold shape [1, 2, 64]",
        id="26 rank of a row format",
    ),
    pytest.param(
        "nvfp4",
        (128, 64),
        put("shape", [64, 128]),
        "w: layout block_scale_k16_m128x4_v1 cannot hold shape [64, 128]",
        id="26 nvfp4 rows",
    ),
    pytest.param(
        "nvfp4",
        (128, 64),
        put("shape", [256, 32]),
        "w: layout block_scale_k16_m128x4_v1 cannot hold shape [256, 32]",
        id="26 nvfp4 columns",
    ),
    pytest.param(
        "gguf_q4_k",
        (2, 256),
        put("shape", [4, 128]),
        "w: layout gguf_blocks_v1 cannot hold shape [4, 128]",
        id="26 gguf columns",
    ),
    pytest.param("q4_g64_fp16", (2, 64), put("divisors", 2), "w: invalid divisor count 2", id="27 no divisors here"),
    pytest.param("nvfp4", (384, 64), put("divisors", 2), "w: invalid divisor count 2", id="27 share of 192 rows"),
    pytest.param("nvfp4", (384, 64), put("divisors", 5), "w: invalid divisor count 5", id="27 does not divide"),
    pytest.param(
        "nvfp4",
        (256, 64),
        put("divisors", 2),
        "w: expected 9224 bytes at 256-byte alignment, got bytes=9220, offset=0",
        id="25 a divisor that is not stored",
    ),
]


@pytest.mark.parametrize(("form", "shape", "change", "text"), OBJECTS)
def test_an_object_that_is_not_what_it_says_is_refused(artifact, formats, form, shape, change, text: str):
    checkpoint = artifact([stored(formats, "w", form, shape)], change=change)
    item = checkpoint.container.directory.objects["w"]
    assert isinstance(item, TensorObject)
    found = refusal(checkpoint, "w", item.shape)
    assert found == text or found.startswith(f"{text} ("), found


def test_28_a_divisor_that_is_not_finite_and_positive_is_refused_when_it_is_read(artifact, formats):
    record, data = stored(formats, "w", "nvfp4", (256, 64))
    for bad in (0.0, -2.0, float("nan"), float("inf")):
        words = torch.tensor([1.0, bad]).view(torch.uint8).numpy().tobytes()
        both = record | {"divisors": 2, "bytes": record["bytes"] + 4}
        checkpoint = artifact([(both, data[:-4] + words)])
        assert len(checkpoint.pieces("w", (256, 64))) == 1
        assert refusal(checkpoint, "w", (256, 64)) == "w: weight divisor 1 is not finite and positive"


def test_divisors_are_read_and_shared_out_to_the_rows(artifact, formats):
    record, data = stored(formats, "w", "nvfp4", (256, 64))
    words = torch.tensor([2.0, 8.0]).view(torch.uint8).numpy().tobytes()
    both = record | {"divisors": 2, "bytes": record["bytes"] + 4}
    ranges = {"a": [0, 128 * 64], "b": [128 * 64, 256 * 64]}
    bindings = {"w": {"object": "w"}} | {
        name: {"parts": [{"object": "w", "range": bounds}]} for name, bounds in ranges.items()
    }
    checkpoint = artifact([(both, data[:-4] + words)], bindings)
    decode = formats["nvfp4"].decode
    (whole,) = checkpoint.parameter("w", (256, 64))
    assert whole.divisors == 2
    dense = decode(whole)
    (first,), (second,) = checkpoint.parameter("a", (128, 64)), checkpoint.parameter("b", (128, 64))
    assert (first.divisors, second.divisors) == (1, 1)
    assert torch.equal(torch.cat([decode(first), decode(second)]), dense)


def test_rows_across_two_shares_are_a_part_of_each(artifact, formats):
    record, data = stored(formats, "w", "nvfp4", (512, 64))
    words = torch.tensor([2.0, 8.0]).view(torch.uint8).numpy().tobytes()
    both = record | {"divisors": 2, "bytes": record["bytes"] + 4}
    bindings = {"m": {"parts": [{"object": "w", "range": [128 * 64, 384 * 64]}]}, "w": {"object": "w"}}
    checkpoint = artifact([(both, data[:-4] + words)], bindings)
    parts = checkpoint.parameter("m", (256, 64))
    assert [part.shape for part in parts] == [(128, 64), (128, 64)]
    decode = formats["nvfp4"].decode
    whole = decode(checkpoint.parameter("w", (512, 64))[0])
    assert torch.equal(torch.cat([decode(part) for part in parts]), whole[128:384])


def test_a_parameter_of_parts_in_several_formats_is_their_rows_in_order(artifact, formats):
    """Row-wise mixed precision (§15.0): each part is decoded by its own format."""
    forms = ["q4_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16", "bf16", "q6_g64_fp16"]
    objects = [stored(formats, f"w{i}", form, (128, 64), seed=i) for i, form in enumerate(forms)]
    ranges = [(0, 128), (0, 128), (5, 77), (3, 9), (127, 128)]
    parts = [{"object": f"w{i}", "range": [a * 64, b * 64]} for i, (a, b) in enumerate(ranges)]
    checkpoint = artifact(objects, {"p": {"parts": parts}})
    rows = sum(b - a for a, b in ranges)
    found = checkpoint.parameter("p", (rows, 64))
    assert [part.format for part in found] == forms
    unread = checkpoint.pieces("p", (rows, 64))
    assert [(p.shape, p.format, p.bytes) for p in unread] == [(p.shape, p.format, p.data.numel()) for p in found]
    for part, (record, data), (a, b) in zip(found, objects, ranges, strict=True):
        form = formats[record["format"]]
        whole = replace(part, shape=(128, 64), data=torch.frombuffer(bytearray(data), dtype=torch.uint8))
        assert torch.equal(form.decode(part), form.decode(whole)[a:b])
    assert refusal(checkpoint, "p", (rows + 1, 64)).startswith('parameter "p": needs shape')


@pytest.mark.parametrize("form", ["q4_g64_fp16", "nvfp4", "fp8_e4m3fn_row_fp16", "gguf_q8_0"])
def test_36_a_range_inside_a_row_of_a_stored_format_is_refused(artifact, formats, form: str):
    bindings = {"p": {"parts": [{"object": "w", "range": [32, 96]}]}}
    checkpoint = artifact([stored(formats, "w", form, (128, 64))], bindings)
    assert refusal(checkpoint, "p", (1, 64)) == (
        'parameter "p": range [32,96] of w [128, 64] is not whole rows of [1, 64]'
    )


# auxiliaries


def signs(count: int = COLUMNS) -> torch.Tensor:
    x = torch.ones(count)
    x[torch.rand(count, generator=torch.Generator().manual_seed(1)) < 0.5] = -1
    return x.bfloat16()


def use(parameter: str, role: str, name: str, entry: str = "i") -> dict[str, Any]:
    return {"parameter": parameter, "input": entry, "auxiliaries": {role: {"object": name}}}


def bad_sign() -> torch.Tensor:
    x = signs()
    x[7] = 0.5
    return x


AUXILIARIES = [
    pytest.param("w", "t2_g128_fp16", "hadamard_signs", signs(), "is not supported here", id="39 site"),
    pytest.param(
        PROJECTION,
        "t2_g128_fp16",
        "hadamard_signs",
        signs().float(),
        "needs bf16 [1024], artifact provides fp32 [1024]",
        id="39 signs in fp32",
    ),
    pytest.param(
        PROJECTION,
        "t2_g128_fp16",
        "hadamard_signs",
        signs(512),
        "needs bf16 [1024], artifact provides bf16 [512]",
        id="39 too few signs",
    ),
    pytest.param(
        PROJECTION,
        "t2_g128_fp16",
        "hadamard_signs",
        bad_sign(),
        "has a value that is neither +1 nor -1",
        id="39 no sign",
    ),
    pytest.param(
        PROJECTION,
        "q4_g64_fp16",
        "input_columns",
        torch.arange(COLUMNS, dtype=torch.int32),
        "is supported for gguf formats only",
        id="39 columns of another format",
    ),
    pytest.param(
        PROJECTION,
        "gguf_q8_0",
        "input_columns",
        torch.zeros(COLUMNS, dtype=torch.int32),
        "is not a permutation of 0..1023",
        id="39 no permutation",
    ),
    pytest.param(
        PROJECTION,
        "gguf_q8_0",
        "input_columns",
        torch.arange(COLUMNS).float(),
        "needs int32 [1024], artifact provides fp32 [1024]",
        id="39 columns in fp32",
    ),
    pytest.param(PROJECTION, "gguf_q8_0", "smooth_scales", signs(), "is not supported", id="39 unknown role"),
    pytest.param(
        PROJECTION,
        "nvfp4",
        "activation_input_divisor",
        torch.ones(2),
        "needs fp32 [1], artifact provides fp32 [2]",
        id="39 divisors for one activation",
    ),
]


@pytest.mark.parametrize(("name", "form", "role", "values", "text"), AUXILIARIES)
def test_an_auxiliary_that_cannot_be_honoured_is_refused(artifact, formats, name, form, role, values, text: str):
    objects = [stored(formats, name, form, (ROWS, COLUMNS)), direct("v", values)]
    checkpoint = artifact(objects, uses=[use(name, role, "v")])
    assert refusal(checkpoint, name, (ROWS, COLUMNS)) == f'Use {name}@i: auxiliary "{role}" {text}'


def test_39_uses_that_disagree_are_refused(artifact, formats):
    objects = [
        stored(formats, HEAD, "t2_g128_fp16", (ROWS, COLUMNS)),
        direct("a", signs()),
        direct("b", -signs()),
    ]
    uses = [use(HEAD, "hadamard_signs", "a", "text/final_hidden"), use(HEAD, "hadamard_signs", "b", "mtp/final_hidden")]
    checkpoint = artifact(objects, uses=uses)
    assert refusal(checkpoint, HEAD, (ROWS, COLUMNS)) == f'parameter "{HEAD}": its Uses disagree about auxiliaries'


def test_40_a_4_bit_policy_without_a_divisor_is_a_permission_nobody_takes(artifact, formats):
    """Activations are never 4 bits wide here, so nothing asks for the divisor."""
    uses = [{"parameter": PROJECTION, "input": "i", "activation_policy": "AllowA4"}]
    checkpoint = artifact([stored(formats, PROJECTION, "nvfp4", (ROWS, COLUMNS))], uses=uses)
    assert checkpoint.parameter(PROJECTION, (ROWS, COLUMNS))[0].input is None


@pytest.mark.parametrize("entry", ["text/final_hidden", "mtp/final_hidden", None])
def test_41_a_ternary_token_table_needs_the_signs_of_the_head(artifact, formats, entry):
    objects = [
        stored(formats, TABLE, "t2_g128_fp16", (ROWS, COLUMNS)),
        stored(formats, HEAD, "t2_g128_fp16", (ROWS, COLUMNS)),
        direct("v", signs()),
    ]
    checkpoint = artifact(objects, uses=[] if entry is None else [use(HEAD, "hadamard_signs", "v", entry)])
    if entry == "text/final_hidden":
        (table,) = checkpoint.parameter(TABLE, (ROWS, COLUMNS))
        (head,) = checkpoint.parameter(HEAD, (ROWS, COLUMNS))
        assert table.input is head.input and torch.equal(table.input.signs, signs().float())
    else:
        text = f"ternary token embedding needs hadamard_signs on {HEAD}"
        assert refusal(checkpoint, TABLE, (ROWS, COLUMNS)) == text


# what a family asks


NORM = "text/final_norm"
SHAPES = {HEAD: (ROWS, 64), NORM: (64,)}


def never(*args: Any) -> Any:
    raise AssertionError("weights are not needed here")


STRICT = ModelFamily(
    name="strict",
    summary="a head and a norm, as published artifacts have them",
    architectures=("ToyForCausalLM",),
    sources={},
    adapt=never,
    inventory=lambda config: SHAPES,
    kv_geometry=lambda config: KVGeometry(heads=(), head_dims=()),
    context_length=lambda config: 8,
    hidden_size=lambda config: 64,
    prompt=never,
    build=never,
    direct_formats=lambda config: {NORM: "bf16"},
    uses=lambda config: {HEAD: ("text/final_hidden", "mtp/final_hidden")},
    companions={"mtp": lambda config: {}},
)
USES = [{"parameter": HEAD, "input": f"{name}/final_hidden"} for name in ("text", "mtp")]


@pytest.fixture
def strict(artifact, formats):
    def build(norm=torch.bfloat16, uses=USES, extra=(), **more):
        objects = [stored(formats, HEAD, "q8_g32_fp16", (ROWS, 64)), direct(NORM, torch.ones(64, dtype=norm)), *extra]
        return artifact(objects, uses=uses, **more)

    return build


def reasons(checkpoint: ArtifactCheckpoint) -> list[str]:
    return [str(problem).removeprefix(f"{checkpoint.path}: ") for problem in bind(STRICT, checkpoint)]


def test_an_artifact_with_all_a_family_asks_binds(strict):
    assert reasons(strict()) == []
    assert reasons(strict(components={"mtp": {"config": {}, "target": "text"}, "vision": {"config": {}}})) == []


def test_37_a_direct_parameter_in_another_format_is_refused(strict):
    assert reasons(strict(norm=torch.float32)) == [f'parameter "{NORM}": expected bf16, found fp32']


def test_38_a_use_that_is_missing_is_named(strict):
    assert reasons(strict(uses=USES[:1])) == [f"missing Use {HEAD}@mtp/final_hidden"]
    assert reasons(strict(uses=[])) == [f"missing Use {HEAD}@{name}/final_hidden" for name in ("text", "mtp")]


@pytest.mark.parametrize(
    ("components", "name", "text"),
    [
        ({}, "vision", 'component "vision" is not in this artifact (available: text)'),
        ({"mtp": {"config": {}}}, "mtp", 'component "mtp": its target has to be "text", found none'),
        (
            {"mtp": {"config": {}, "target": "mtp"}},
            "mtp",
            'component "mtp": its target has to be "text", found "mtp"',
        ),
    ],
    ids=["absent", "no target", "other target"],
)
def test_43_a_component_that_is_not_there_or_not_the_texts_is_refused(strict, components, name, text: str):
    checkpoint = strict(components=components)
    with pytest.raises(ArtifactError) as caught:
        component_of(checkpoint.container.directory, checkpoint.path, name)
    assert str(caught.value) == f"{checkpoint.path}: {text}"
    if name in components:
        assert reasons(checkpoint) == [text]


# the proposal head


def proposal(formats, ids: list[int], rows: int | None = None) -> list[tuple[dict[str, Any], bytes]]:
    head = stored(formats, "proposal/head", "q4_g64_fp16", (rows or len(ids), 64))
    return [head, direct("proposal/token_ids", torch.tensor(ids, dtype=torch.int32))]


def indexed(rows: int) -> dict[str, Any]:
    return {"domain": "indexed", "rows": rows}


def test_a_stored_proposal_head_is_described_and_its_ids_are_read(strict, formats):
    checkpoint = strict(extra=proposal(formats, [5, 0, 9]), proposal=indexed(3))
    head = stated_head(checkpoint)
    assert (head.rows, head.hidden, head.indexed) == (3, 64, True)
    assert token_ids(checkpoint, 10).tolist() == [5, 0, 9]
    assert reasons(checkpoint) == []


def test_a_full_proposal_head_has_a_row_for_every_token(strict, formats):
    checkpoint = strict(
        extra=[stored(formats, "proposal/head", "q4_g64_fp16", (ROWS, 64))], proposal={"domain": "full"}
    )
    head = stated_head(checkpoint)
    assert (head.rows, head.indexed) == (ROWS, False)
    assert token_ids(checkpoint, 200).tolist() == list(range(200))


@pytest.mark.parametrize(
    "ids",
    [[5, 0, 5], [5, 0, 10], [5, -1, 3]],
    ids=["twice", "beyond the public tokens", "negative"],
)
def test_42_token_ids_that_are_none_are_refused(strict, formats, ids):
    checkpoint = strict(extra=proposal(formats, ids), proposal=indexed(3))
    with pytest.raises(ArtifactError) as caught:
        token_ids(checkpoint, 10)
    assert str(caught.value) == f"{checkpoint.path}: proposal token ids must be unique and in [0,10)"


def test_42_a_head_of_more_rows_than_tokens_is_refused(strict, formats):
    checkpoint = strict(extra=proposal(formats, [0, 1, 2]), proposal=indexed(3))
    with pytest.raises(ArtifactError, match="has 3 rows, the tokenizer 2 tokens"):
        token_ids(checkpoint, 2)


def test_42_a_head_that_is_asked_for_and_not_there_is_refused(strict):
    checkpoint = strict()
    assert stated_head(checkpoint) is None
    with pytest.raises(ArtifactError) as caught:
        require_head(checkpoint)
    assert str(caught.value) == f"{checkpoint.path}: no proposal head stored"


def test_42_a_declared_head_is_a_promise_of_its_parameters(strict, formats):
    assert reasons(strict(proposal=indexed(3))) == ['missing parameter "proposal/head"']
    (head,) = proposal(formats, [0, 1, 2])[:1]
    assert reasons(strict(extra=[head], proposal=indexed(3))) == ['missing parameter "proposal/token_ids"']
    wrong = reasons(strict(extra=proposal(formats, [0, 1, 2]), proposal=indexed(2)))
    assert wrong == ['parameter "proposal/head": needs shape [2, 64], artifact provides 192 elements as [3, 64]']


def test_37_proposal_ids_that_are_no_int32_are_refused(strict, formats):
    extra = [proposal(formats, [0, 1])[0], direct("proposal/token_ids", torch.tensor([0.0, 1.0]))]
    checkpoint = strict(extra=extra, proposal=indexed(2))
    with pytest.raises(ArtifactError) as caught:
        token_ids(checkpoint, 10)
    text = 'parameter "proposal/token_ids": expected int32, found fp32'
    assert str(caught.value) == f"{checkpoint.path}: {text}"


# what must not be refused


def test_what_is_not_selected_may_be_anything(strict, formats):
    """Unknown formats, objects, components, and Uses of parameters nobody asks for; ids and order carry no meaning."""
    strange = ({"id": "zz", "kind": "tensor", "shape": [3], "format": "exl3", "layout": "x_v1", "bytes": 5}, b"12345")
    more = [{"parameter": "zz", "input": "i", "auxiliaries": {"novel": {"object": "zz"}}}]
    checkpoint = strict(extra=[strange], uses=[*USES, *more], components={"decision": {"config": {"x": [1]}}})
    assert reasons(checkpoint) == []


@pytest.mark.parametrize("form", ["q5_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16"])
def test_padding_inside_an_object_is_not_looked_at(artifact, formats, form: str):
    """Bytes between the planes: whatever stands there, the values are the same."""
    from ninfer_kernels.quant_linear.planes import layout

    kind = {"q5_g64_fp16": "q5_g64", "nvfp4": "nvfp4", "fp8_e4m3fn_row_bf16": "fp8_row_bf16"}[form]
    shape = (128, 64) if form == "nvfp4" else (3, 70)
    record, data = stored(formats, "w", form, shape)
    planes, _ = layout(kind, *shape)
    dirty = bytearray(data)
    for before, after in pairwise(planes):
        end = before.offset + shape[0] * before.stride
        dirty[end : after.offset] = b"\xff" * (after.offset - end)
    clean = artifact([(record, data)]).parameter("w", shape)[0]
    found = artifact([(record, bytes(dirty))]).parameter("w", shape)[0]
    assert torch.equal(formats[form].decode(found), formats[form].decode(clean))
