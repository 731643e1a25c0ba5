"""``ninfer convert --weights SCHEME``: which parameter becomes what, parents, Uses, and what an artifact keeps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, ImportPlan, KVGeometry, ModelFamily, Recipe, Source, SourceTensor
from ninfer_core.testing import compose
from ninfer_core.weights import conversion
from ninfer_core.weights.artifact import ArtifactCheckpoint
from ninfer_core.weights.container import Container
from ninfer_core.weights.conversion import new_artifact
from ninfer_core.weights.formats import encoded
from ninfer_core.weights.imported import ImportedCheckpoint
from ninfer_core.weights.packing import candidates
from ninfer_core.weights.writer import write_artifact

FORMATS = compose({"gguf", "groupwise_int", "row_fp8", "nvfp4"}).weight_formats
P = "text/layers/0/"
SHAPES: dict[str, tuple[int, ...]] = {
    "text/token_embedding": (256, 128),
    "text/output_head": (256, 128),
    "text/final_norm": (128,),
    f"{P}input_norm": (128,),
    f"{P}attention/query": (256, 128),
    f"{P}attention/key": (128, 128),
    f"{P}attention/gate": (256, 128),
    f"{P}attention/value": (128, 128),
    f"{P}attention/output": (128, 256),
    f"{P}mlp/gate": (384, 128),
    f"{P}mlp/up": (384, 128),
    f"{P}mlp/down": (128, 384),
    f"{P}gdn/a_projection": (5, 128),
    f"{P}gdn/b_projection": (5, 128),
    f"{P}gdn/a_log": (5,),
}
CONFIG = {"architectures": ["SmallForCausalLM"]}
Q4, Q8, FP8 = "q4_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16"


def never(*args: Any) -> Any:
    raise AssertionError("not needed here")


SMALL = ModelFamily(
    name="small",
    summary="one layer",
    architectures=("SmallForCausalLM",),
    sources={},
    adapt=never,
    inventory=lambda config: SHAPES,
    kv_geometry=lambda config: KVGeometry(heads=(), head_dims=()),
    context_length=lambda config: 8,
    hidden_size=lambda config: 128,
    prompt=never,
    build=never,
)


def source(tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> ImportedCheckpoint:
    generator = torch.Generator().manual_seed(3)
    form = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    tensors = {}
    for name, shape in SHAPES.items():
        stored = encoded(torch.randn(shape, generator=generator).to(dtype), form, shape)
        tensors[name] = SourceTensor(name=name, format=form, shape=shape, read=lambda stored=stored: stored)
    names = {name: "text/token_embedding" if tied and name == "text/output_head" else name for name in SHAPES}
    plan = ImportPlan(
        architecture="SmallForCausalLM",
        config=CONFIG,
        parameters={name: Recipe(tensors=(names[name],), shape=shape) for name, shape in SHAPES.items()},
    )
    found = Source(kind="test", path="source", architecture="Small", config={}, tensors=tensors)
    return ImportedCheckpoint(found, plan, FORMATS)


def values(checkpoint, name: str) -> torch.Tensor:
    parts = checkpoint.parameter(name, SHAPES[name])
    return torch.cat([FORMATS[part.format].decode(part) for part in parts]).reshape(SHAPES[name])


def convert(tmp_path: Path, checkpoint, family=SMALL, **options: Any) -> ArtifactCheckpoint:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.ninfer"
    write_artifact(path, new_artifact(family, checkpoint, FORMATS, **options))
    return ArtifactCheckpoint(Container(str(path)), FORMATS)


def formats_of(checkpoint: ArtifactCheckpoint) -> dict[str, str]:
    found = {name: {piece.format for piece in checkpoint.pieces(name, shape)} for name, shape in SHAPES.items()}
    return {name: "+".join(sorted(forms)) for name, forms in found.items()}


DEFAULTS = {
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp32": ("fp32", "fp32", "fp32", "bf16"),
    "fp8": (FP8, FP8, FP8, "bf16"),
    "groupwise-int": (Q8, Q4, Q4, "bf16"),
    "nvfp4": (FP8, "nvfp4", FP8, "bf16"),
}


@pytest.mark.parametrize("scheme", DEFAULTS)
def test_a_family_that_says_nothing_gets_the_usual_formats(tmp_path, scheme):
    table, matrix, odd, vector = DEFAULTS[scheme]
    found = formats_of(convert(tmp_path, source(), weights=scheme))
    assert found["text/token_embedding"] == found["text/output_head"] == table
    assert {found[f"{P}{name}"] for name in ("attention/query", "mlp/down", "attention/output")} == {matrix}
    assert found[f"{P}gdn/a_projection"] == odd
    assert {found[name] for name in ("text/final_norm", f"{P}gdn/a_log")} == {vector}


@pytest.mark.parametrize("scheme", DEFAULTS)
def test_every_parameter_is_the_encoded_one(tmp_path, scheme):
    before, after = source(), convert(tmp_path, source(), weights=scheme)
    for name, shape in SHAPES.items():
        (form,) = {piece.format for piece in after.pieces(name, shape)}
        exact = values(before, name)
        wanted = FORMATS[form].decode(FORMATS[form].quantize(exact))
        found = values(after, name)
        if form == "nvfp4":
            # a parent has one divisor for all its members
            assert (found - exact).square().mean() < 1.1 * (wanted - exact).square().mean()
        else:
            assert torch.equal(found, wanted), name


def test_a_familys_recipe_is_followed_and_the_rest_is_kept(tmp_path):
    def recipe(config, scheme):
        assert scheme == "groupwise-int"
        return {f"{P}attention/query": "q6_g64_fp16", f"{P}gdn/a_log": "fp32", "text/not_here": "q4_g64_fp16"}

    found = formats_of(convert(tmp_path, source(), replace(SMALL, weight_recipe=recipe), weights="groupwise-int"))
    assert found.pop(f"{P}attention/query") == "q6_g64_fp16"
    assert found.pop(f"{P}gdn/a_log") == "fp32"
    assert set(found.values()) == {"bf16"}


def test_direct_formats_are_cast_to_whatever_the_scheme(tmp_path):
    family = replace(SMALL, direct_formats=lambda config: {f"{P}gdn/a_log": "fp32", f"{P}input_norm": "bf16"})
    for scheme in ("keep", "groupwise-int"):
        after = convert(tmp_path, source(dtype=torch.float32), family, weights=scheme)
        assert formats_of(after)[f"{P}input_norm"] == "bf16"
        assert formats_of(after)[f"{P}gdn/a_log"] == "fp32"
        assert torch.equal(values(after, f"{P}input_norm"), values(source(), f"{P}input_norm"))


def test_a_format_nobody_offers_is_named_with_its_parameter():
    family = replace(SMALL, weight_recipe=lambda config, scheme: {f"{P}mlp/up": "q3_g64_fp16"})
    with pytest.raises(ArtifactError) as caught:
        new_artifact(family, source(), FORMATS, weights="groupwise-int")
    assert str(caught.value) == (
        f'source: --weights groupwise-int stores parameter "{P}mlp/up" as q3_g64_fp16, and no plugin offers that format'
    )


def test_a_recipe_that_does_not_fit_a_shape_is_refused_before_anything_is_written():
    family = replace(SMALL, weight_recipe=lambda config, scheme: {f"{P}gdn/a_projection": "nvfp4"})
    with pytest.raises(ArtifactError, match=r"gdn/a_projection: layout block_scale_k16_m128x4_v1 cannot hold"):
        new_artifact(family, source(), FORMATS, weights="nvfp4")


def test_a_tied_head_is_stored_once_and_one_of_another_format_twice(tmp_path):
    once = convert(tmp_path, source(tied=True), weights="groupwise-int").container.directory.bindings
    assert once["text/token_embedding"] == once["text/output_head"]

    def recipe(config, scheme):
        return {"text/token_embedding": Q8, "text/output_head": "q6_g64_fp16"}

    twice = convert(tmp_path, source(tied=True), replace(SMALL, weight_recipe=recipe), weights="groupwise-int")
    assert formats_of(twice)["text/token_embedding"] == Q8
    assert formats_of(twice)["text/output_head"] == "q6_g64_fp16"
    bindings = twice.container.directory.bindings
    assert bindings["text/token_embedding"] != bindings["text/output_head"]


# parents


def parents(checkpoint: ArtifactCheckpoint) -> list[tuple[str, ...]]:
    """Parameters that share an object, in the order of their rows."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, binding in checkpoint.container.directory.bindings.items():
        for part in binding.parts:
            found.setdefault(part.object, []).append((part.begin, name.removeprefix(P)))
    return [tuple(name for _, name in sorted(members)) for members in found.values() if len(members) > 1]


def test_neighbours_of_one_format_share_a_parent(tmp_path):
    found = parents(convert(tmp_path, source(), weights="groupwise-int"))
    assert found == [
        ("attention/query", "attention/key", "attention/gate", "attention/value"),
        ("mlp/gate", "mlp/up"),
        ("gdn/a_projection", "gdn/b_projection"),
    ]


def test_members_of_different_formats_go_by_what_they_share(tmp_path):
    forms = {"attention/query": Q4, "attention/key": Q4, "attention/gate": "q5_g64_fp16"}
    forms |= {"attention/value": "q5_g64_fp16", "mlp/gate": Q4, "mlp/up": "q5_g64_fp16"}
    family = replace(SMALL, weight_recipe=lambda config, scheme: {P + name: form for name, form in forms.items()})
    found = parents(convert(tmp_path, source(), family, weights="groupwise-int"))
    assert found == [
        ("attention/query", "attention/key"),
        ("attention/gate", "attention/value"),
        ("gdn/a_projection", "gdn/b_projection"),
    ]


def test_an_expert_is_one_run_of_rows():
    names = [f"{P}moe/experts/{e}/{part}" for part in ("down", "up", "gate") for e in range(12)]
    first, second = candidates(names)
    assert first == tuple(f"{P}moe/experts/{e}/{half}" for e in range(12) for half in ("gate", "up"))
    assert second == tuple(f"{P}moe/experts/{e}/down" for e in range(12))


def test_parameters_of_different_components_are_never_put_together():
    names = ["text/layers/0/mlp/gate", "text/layers/1/mlp/up", "mtp/layers/0/mlp/up", "vision/layers/0/mlp/gate"]
    assert list(candidates(names)) == []
    joint = [f"vision/layers/3/attention/{name}" for name in ("query", "key", "value")]
    assert tuple(joint) in list(candidates(joint))
    assert tuple(joint) not in list(candidates([name.replace("vision", "text") for name in joint]))


PREFIXES = ["text/layers/0/", "text/layers/1/", "mtp/layers/0/", "vision/layers/0/"]
INNER = ["attention/query", "attention/key", "attention/value", "attention/gate", "mlp/gate", "mlp/up", "gdn/z", "norm"]


@given(st.sets(st.sampled_from([p + i for p in PREFIXES for i in INNER])))
def test_a_candidate_names_present_parameters_of_one_block_once(names):
    for group in candidates(sorted(names)):
        assert len(group) > 1 and len(set(group)) == len(group)
        assert set(group) <= names
        assert len({name.rsplit("/", 2)[0] for name in group}) == 1


# encoders and streaming


def test_an_encoder_is_chosen_by_name_and_has_to_be_used(tmp_path):
    usual = convert(tmp_path, source(), weights="groupwise-int")
    search = convert(tmp_path, source(), weights="groupwise-int", encoder="grouped_search")
    name = f"{P}mlp/down"
    exact = values(source(), name)
    errors = [(values(checkpoint, name) - exact).square().sum() for checkpoint in (usual, search)]
    assert errors[1] < 0.9 * errors[0]
    with pytest.raises(ArtifactError, match="--weights fp8 stores nothing that encoder grouped_search could make"):
        new_artifact(SMALL, source(), FORMATS, weights="fp8", encoder="grouped_search")


@pytest.mark.parametrize("scheme", DEFAULTS)
def test_matrices_are_encoded_some_rows_at_a_time(tmp_path, monkeypatch, scheme):
    whole = convert(tmp_path, source(), weights=scheme)
    monkeypatch.setattr(conversion, "CHUNK_ELEMENTS", 7 * 128)
    pieces = convert(tmp_path, source(), weights=scheme)
    for name in SHAPES:
        assert torch.equal(values(whole, name), values(pieces, name)), name


def test_a_value_that_cannot_be_stored_names_the_source_tensor(tmp_path):
    checkpoint = source()
    bad = torch.full(SHAPES[f"{P}mlp/up"], float("inf")).bfloat16()
    tensor = checkpoint.source.tensors[f"{P}mlp/up"]
    stored = encoded(bad, "bf16", tensor.shape)
    checkpoint.source.tensors[f"{P}mlp/up"] = replace(tensor, read=lambda: stored)
    with pytest.raises(ArtifactError) as caught:
        convert(tmp_path, checkpoint, weights="groupwise-int")
    text = f"source: {P}mlp/gate, {P}mlp/up: cannot be stored as q4_g64_fp16: a value is not finite"
    assert str(caught.value) == text
    assert list(tmp_path.iterdir()) == []


# Uses


def test_a_use_is_written_for_every_input_the_family_names(tmp_path):
    inputs = {f"{P}mlp/up": (f"{P}ffn_input",), "text/output_head": ("text/final_hidden", "mtp/final_hidden")}
    family = replace(SMALL, uses=lambda config: inputs)
    policies = {"groupwise-int": ("A16Only", "A16Only"), "nvfp4": ("AllowA8", "AllowA8"), "keep": ("A16Only",) * 2}
    for scheme, (up, head) in policies.items():
        uses = convert(tmp_path, source(), family, weights=scheme).container.directory.uses
        assert [(use.parameter, use.input, use.policy) for use in uses] == [
            ("text/output_head", "text/final_hidden", head),
            ("text/output_head", "mtp/final_hidden", head),
            (f"{P}mlp/up", f"{P}ffn_input", up),
        ]


def published(tmp_path: Path) -> ArtifactCheckpoint:
    """An artifact with a Use that carries an auxiliary, a proposal head and a component nobody knows."""
    new = new_artifact(SMALL, source(), FORMATS, weights="groupwise-int")
    ids = torch.tensor([4, 2], dtype=torch.int32).view(torch.uint8).numpy().tobytes()
    head = FORMATS[Q4].quantize(torch.randn(2, 128)).data.numpy().tobytes()
    divisor = torch.tensor([2.0]).view(torch.uint8).numpy().tobytes()
    record = new.tensors[0]
    direct = replace(record, layout="contiguous_le_v1", read=lambda: [memoryview(ids)])
    tensors = [
        *new.tensors,
        replace(record, id="h", shape=(2, 128), format=Q4, bytes=len(head), read=lambda: [memoryview(head)]),
        replace(direct, id="i", shape=(2,), format="int32", bytes=8),
        replace(direct, id="d", shape=(), format="fp32", bytes=4, read=lambda: [memoryview(divisor)]),
    ]
    use = {"parameter": f"{P}mlp/up", "input": "i", "activation_policy": "AllowA4"}
    use["auxiliaries"] = {"activation_input_divisor": {"object": "d"}}
    components = {**new.components, "vision": {"config": {}, "target": "text"}}
    components["text"] = {**components["text"], "proposal": {"domain": "indexed", "rows": 2}}
    bindings = {**new.bindings, "proposal/head": {"object": "h"}, "proposal/token_ids": {"object": "i"}}
    path = tmp_path / "published.ninfer"
    changed = replace(new, tensors=tensors, components=components, bindings=bindings, uses=[use])
    write_artifact(path, changed)
    return ArtifactCheckpoint(Container(str(path)), FORMATS)


def test_keep_takes_over_uses_auxiliaries_and_the_proposal_head(tmp_path):
    before = published(tmp_path)
    after = convert(tmp_path, before)
    (use,) = after.container.directory.uses
    assert (use.parameter, use.input, use.policy) == (f"{P}mlp/up", "i", "AllowA4")
    (part,) = use.auxiliaries["activation_input_divisor"].parts
    assert after.container.object_bytes(part.object) == torch.tensor([2.0]).view(torch.uint8).numpy().tobytes()
    assert after.container.directory.components["text"].proposal == {"domain": "indexed", "rows": 2}
    for name, shape in (("proposal/head", (2, 128)), ("proposal/token_ids", (2,))):
        assert torch.equal(before.parameter(name, shape)[0].data, after.parameter(name, shape)[0].data)
    for name in SHAPES:
        assert torch.equal(values(before, name), values(after, name))
    assert conversion.left_out(SMALL, before) == (f'{before.path}: component "vision" is left out',)


def test_a_parameter_stored_anew_loses_its_old_uses(tmp_path):
    assert convert(tmp_path, published(tmp_path), weights="bf16").container.directory.uses == ()


def test_a_matrix_stored_for_a_changed_input_is_kept_or_refused(tmp_path):
    columns = 1024
    shapes = {"text/output_head": (128, columns)}
    family = replace(SMALL, inventory=lambda config: shapes)
    form = FORMATS["t2_g128_fp16"]
    data = bytes(form.encoded_bytes((128, columns)))
    signs = torch.ones(columns).bfloat16().view(torch.uint8).numpy().tobytes()
    record = new_artifact(SMALL, source(), FORMATS).tensors[0]
    base = {"text/output_head": {"object": "w"}}
    auxiliaries = {"hadamard_signs": {"object": "s"}}
    new = replace(
        new_artifact(SMALL, source(), FORMATS),
        tensors=[
            replace(
                record,
                id="w",
                shape=(128, columns),
                format=form.name,
                layout=form.layout,
                bytes=len(data),
                read=lambda: [memoryview(data)],
            ),
            replace(
                record,
                id="s",
                shape=(columns,),
                format="bf16",
                layout="contiguous_le_v1",
                bytes=len(signs),
                read=lambda: [memoryview(signs)],
            ),
        ],
        bindings=base,
        uses=[{"parameter": "text/output_head", "input": "text/final_hidden", "auxiliaries": auxiliaries}],
    )
    path = tmp_path / "rotated.ninfer"
    write_artifact(path, new)
    checkpoint = ArtifactCheckpoint(Container(str(path)), FORMATS)
    kept = convert(tmp_path, checkpoint, family)
    (stored,) = kept.parameter("text/output_head", (128, columns))
    assert stored.input is not None and torch.equal(stored.input.signs, torch.ones(columns))
    with pytest.raises(ArtifactError, match="w: stored for a changed input, which only --weights keep preserves"):
        convert(tmp_path, checkpoint, family, weights="bf16")
    assert len(list(itertools.chain(tmp_path.glob("*.ninfer")))) == 2


def test_divisors_survive_a_copy(tmp_path):
    form = FORMATS["nvfp4"]
    data = form.quantize(torch.randn(256, 64)).data
    both = torch.cat([data, torch.tensor([7.0]).view(torch.uint8)]).numpy().tobytes()
    record = new_artifact(SMALL, source(), FORMATS).tensors[0]
    family = replace(SMALL, inventory=lambda config: {"text/output_head": (256, 64)})
    tensor = replace(
        record,
        id="w",
        shape=(256, 64),
        format="nvfp4",
        layout=form.layout,
        bytes=len(both),
        divisors=2,
        read=lambda: [memoryview(both)],
    )
    path = tmp_path / "two.ninfer"
    new = new_artifact(SMALL, source(), FORMATS)
    write_artifact(path, replace(new, tensors=[tensor], bindings={"text/output_head": {"object": "w"}}))
    checkpoint = ArtifactCheckpoint(Container(str(path)), FORMATS)
    (copy,) = convert(tmp_path, checkpoint, family).parameter("text/output_head", (256, 64))
    assert (copy.divisors, copy.data.numpy().tobytes()) == (2, both)
