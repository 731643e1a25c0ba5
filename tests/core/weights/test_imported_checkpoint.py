"""Recipes: what a family asks for, made from a foreign checkpoint's tensors without rounding anything twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ninfer_core.api import ArtifactError, ImportPlan, Recipe, Source, SourceTensor, WeightFormat
from ninfer_core.registry import Registry
from ninfer_core.weights.checkpoint import checkpoint_facts
from ninfer_core.weights.formats import encoded
from ninfer_core.weights.imported import ImportedCheckpoint

FORMAT_OF = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.int32: "int32",
    torch.int64: "i64",
}
A = torch.arange(12.0).view(3, 4)
B = -torch.arange(8.0).view(2, 4)


@pytest.fixture
def make(formats: Registry[WeightFormat]):
    def build(tensors: dict[str, torch.Tensor], **parameters: Recipe) -> ImportedCheckpoint:
        def source_tensor(name: str, x: torch.Tensor) -> SourceTensor:
            form, shape = FORMAT_OF[x.dtype], tuple(x.shape)
            return SourceTensor(name=name, format=form, shape=shape, read=lambda: encoded(x, form, shape))

        source = Source(
            kind="test",
            path="src",
            architecture="A",
            config={},
            tensors={name: source_tensor(name, x) for name, x in tensors.items()},
            resources={"tokenizer.json": b"{}"},
            name="n",
        )
        return ImportedCheckpoint(source, ImportPlan(architecture="B", config={}, parameters=parameters), formats)

    return build


def read(checkpoint: ImportedCheckpoint, name: str, shape: tuple[int, ...]) -> list[tuple[str, list[Any]]]:
    found = checkpoint.parameter(name, shape)
    unread = checkpoint.pieces(name, shape)
    assert [(t.format, t.layout, t.shape, t.data.numel()) for t in found] == [
        (p.format, p.layout, p.shape, p.bytes) for p in unread
    ]
    return [(t.format, checkpoint._formats[t.format].decode(t).tolist()) for t in found]


def test_a_tensor_is_kept_as_it_is_stored(make):
    checkpoint = make({"a": A.bfloat16()}, p=Recipe(tensors=("a",), shape=(3, 4)))
    assert read(checkpoint, "p", (3, 4)) == [("bf16", A.tolist())]
    assert (checkpoint.name, checkpoint.architecture, checkpoint.path) == ("n", "B", "src")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_formats_that_artifacts_lack_become_fp32(make, dtype):
    checkpoint = make({"a": A.to(dtype)}, p=Recipe(tensors=("a",), shape=(3, 4)))
    assert read(checkpoint, "p", (3, 4)) == [("fp32", A.tolist())]


def test_several_tensors_stay_parts_in_their_own_formats(make):
    checkpoint = make({"a": A.bfloat16(), "b": B}, p=Recipe(tensors=("a", "b"), shape=(5, 4)))
    assert read(checkpoint, "p", (5, 4)) == [("bf16", A.tolist()), ("fp32", B.tolist())]


def test_rows_are_reordered_over_the_stack(make):
    order = (4, 0, 3, 1, 2)
    checkpoint = make({"a": A, "b": B}, p=Recipe(tensors=("a", "b"), shape=(5, 4), rows=order))
    assert read(checkpoint, "p", (5, 4)) == [("fp32", torch.cat([A, B])[list(order)].tolist())]


def test_rows_may_be_some_of_them(make):
    checkpoint = make(
        {"a": A, "b": B},
        run=Recipe(tensors=("a",), shape=(2, 4), rows=range(1, 3)),
        picked=Recipe(tensors=("a", "b"), shape=(2, 4), rows=(4, 0)),
    )
    assert read(checkpoint, "run", (2, 4)) == [("fp32", A[1:].tolist())]
    assert read(checkpoint, "picked", (2, 4)) == [("fp32", [B[1].tolist(), A[0].tolist()])]


def test_a_tensor_of_three_dimensions_is_the_matrix_of_its_rows(make):
    stack = torch.arange(24.0).view(2, 3, 4)
    last, mixed = range(3, 6), (5, 0)
    checkpoint = make(
        {"a": stack, "h": stack.half()},
        last=Recipe(tensors=("a",), shape=(3, 4), rows=last),
        mixed=Recipe(tensors=("a",), shape=(2, 4), rows=mixed, transform=lambda x: x + 1),
        half=Recipe(tensors=("h",), shape=(3, 4), rows=last),
    )
    assert read(checkpoint, "last", (3, 4)) == [("fp32", stack[1].tolist())]
    assert read(checkpoint, "half", (3, 4)) == [("fp32", stack[1].tolist())]
    assert read(checkpoint, "mixed", (2, 4)) == [("fp32", (stack.view(6, 4)[[5, 0]] + 1).tolist())]


def test_rows_of_one_tensor_are_told_apart(make):
    """A conversion stores what has one key once."""
    recipes = {f"p{i}": Recipe(tensors=("a",), shape=(1, 4), rows=range(i, i + 1)) for i in range(3)}
    checkpoint = make({"a": A}, **recipes)
    assert len({checkpoint.pieces(name, (1, 4))[0].key for name in recipes}) == 3


def test_derived_tensors_stand_before_the_sources_and_are_read_when_asked_for(formats):
    asked = []

    def decode():
        asked.append("codes")
        return encoded(A + 1, "fp32", (3, 4))

    codes = SourceTensor(name="a", format="u8", shape=(3, 2), read=lambda: pytest.fail("codes are not read alone"))
    plan = ImportPlan(
        architecture="B",
        config={},
        parameters={"p": Recipe(tensors=("a",), shape=(2, 4), rows=(2, 0))},
        derived={"a": SourceTensor(name="a", format="fp32", shape=(3, 4), read=decode)},
        companions={"mtp": {"architectures": ["M"]}},
    )
    source = Source(kind="test", path="src", architecture="A", config={}, tensors={"a": codes})
    checkpoint = ImportedCheckpoint(source, plan, formats)
    assert dict(checkpoint.companions) == {"mtp": {"architectures": ["M"]}}
    checkpoint.pieces("p", (2, 4))
    assert asked == []
    assert read(checkpoint, "p", (2, 4)) == [("fp32", (A + 1)[[2, 0]].tolist())]


def test_columns_stay_where_they_are_and_say_where_they_belong(make):
    checkpoint = make({"a": A}, p=Recipe(tensors=("a",), shape=(3, 4), columns=(2, 0, 3, 1)))
    [piece], [tensor] = checkpoint.pieces("p", (3, 4)), checkpoint.parameter("p", (3, 4))
    assert piece.columns == (2, 0, 3, 1)
    assert tensor.input is not None and tensor.input.columns.tolist() == [2, 0, 3, 1]
    assert read(checkpoint, "p", (3, 4)) == [("fp32", A.tolist())]


def test_rows_of_bf16_keep_their_bits(make):
    words = torch.tensor([[0x7FC1], [-1]], dtype=torch.int16)
    checkpoint = make({"a": words.view(torch.bfloat16)}, p=Recipe(tensors=("a",), shape=(2, 1), rows=(1, 0)))
    assert checkpoint.parameter("p", (2, 1))[0].data.view(torch.int16).tolist() == [-1, 0x7FC1]


def test_a_transform_sees_fp32_after_the_rows_and_is_stored_as_asked(make):
    recipe = Recipe(tensors=("a",), shape=(4, 3), rows=(2, 1, 0), transform=lambda x: (x + 1).T, store="bf16")
    checkpoint = make({"a": A.half()}, p=recipe)
    assert read(checkpoint, "p", (4, 3)) == [("bf16", (A.flip(0) + 1).T.tolist())]


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.bfloat16, "bf16"), (torch.float16, "fp32"), (torch.float32, "fp32")]
)
def test_a_transform_without_a_store_keeps_the_source_format(make, dtype, kept: str):
    checkpoint = make({"a": A.to(dtype)}, p=Recipe(tensors=("a",), shape=(3, 4), transform=torch.exp2))
    assert read(checkpoint, "p", (3, 4)) == [(kept, A.exp2().tolist())]


def test_store_recodes_only_what_is_stored_otherwise(make):
    recipe = Recipe(tensors=("a",), shape=(3, 4), store="bf16")
    assert make({"a": A.bfloat16()}, p=recipe).pieces("p", (3, 4))[0].key[-1] == "bf16"
    assert read(make({"a": A}, p=recipe), "p", (3, 4)) == [("bf16", A.tolist())]


def test_one_tensor_may_take_another_shape(make):
    checkpoint = make({"a": A}, p=Recipe(tensors=("a",), shape=(3, 1, 4)))
    assert read(checkpoint, "p", (3, 1, 4)) == [("fp32", A.view(3, 1, 4).tolist())]


def test_equal_recipes_share_their_bytes(make):
    tied = Recipe(tensors=("a",), shape=(3, 4))
    checkpoint = make({"a": A, "b": B}, p=tied, q=tied, r=Recipe(tensors=("b",), shape=(2, 4)))
    assert checkpoint.pieces("p", (3, 4))[0].key == checkpoint.pieces("q", (3, 4))[0].key
    facts = checkpoint_facts(checkpoint)
    assert (facts.parameters, facts.weight_bytes, facts.formats) == (20, 80, {"fp32": 80})


@pytest.mark.parametrize(
    ("tensors", "recipe", "text"),
    [
        ({}, Recipe(tensors=("a",), shape=(3, 4)), 'missing tensor "a" (for parameter "p")'),
        (
            {"a": A.long()},
            Recipe(tensors=("a",), shape=(3, 4)),
            'tensor "a": format "i64" is not supported',
        ),
        (
            {"a": B},
            Recipe(tensors=("a",), shape=(3, 4)),
            'parameter "p": needs shape [3, 4], the source has "a" [2, 4]',
        ),
        (
            {"a": A, "b": A.T.contiguous()},
            Recipe(tensors=("a", "b"), shape=(6, 4)),
            'parameter "p": needs shape [6, 4], the source has "a" [3, 4], "b" [4, 3]',
        ),
        (
            {"a": A, "b": B.bfloat16()},
            Recipe(tensors=("a", "b"), shape=(5, 4), rows=(0, 1, 2, 3, 4)),
            'parameter "p": rows of several tensors stored as bf16, fp32 cannot be reordered together',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(2, 4), rows=(1, 3)),
            'parameter "p": needs shape [2, 4], the source has "a" [3, 4]',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(2, 4), rows=range(2, 4)),
            'parameter "p": needs shape [2, 4], the source has "a" [3, 4]',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(2, 4), rows=range(-1, 1)),
            'parameter "p": needs shape [2, 4], the source has "a" [3, 4]',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(2, 4), rows=(0, 1, 2)),
            'parameter "p": needs shape [2, 4], the source has "a" [3, 4]',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(3, 4), columns=(0, 1, 1, 3)),
            'parameter "p": its columns are no permutation of [4]',
        ),
        (
            {"a": A},
            Recipe(tensors=("a",), shape=(3, 4), transform=lambda x: x[:2]),
            'parameter "p": needs shape [3, 4], its transform gives [2, 4]',
        ),
        (
            {"a": A / 0},
            Recipe(tensors=("a",), shape=(3, 4), store="bf16"),
            'parameter "p": cannot be stored as bf16: a value is not finite in bf16',
        ),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(make, tensors, recipe: Recipe, text: str):
    with pytest.raises(ArtifactError) as caught:
        make(tensors, p=recipe).parameter("p", (3, 4) if recipe.shape == (3, 4) else recipe.shape)
    assert str(caught.value) == f"src: {text}"


def test_a_parameter_the_plan_lacks_or_shapes_otherwise_is_refused(make):
    checkpoint = make({"a": A}, p=Recipe(tensors=("a",), shape=(3, 4)))
    with pytest.raises(ArtifactError, match='src: missing parameter "q"'):
        checkpoint.parameter("q", (3, 4))
    with pytest.raises(ArtifactError, match=r'"p": needs shape \[4, 3\], the source provides \[3, 4\]'):
        checkpoint.parameter("p", (4, 3))


def test_a_closed_checkpoint_lets_go_of_its_source(make):
    checkpoint = make({"a": A}, p=Recipe(tensors=("a",), shape=(3, 4)))
    assert checkpoint.resource("tokenizer.json") == b"{}"
    checkpoint.close()
    assert checkpoint.resource("tokenizer.json") is None
    with pytest.raises(ArtifactError, match="missing tensor"):
        checkpoint.parameter("p", (3, 4))
