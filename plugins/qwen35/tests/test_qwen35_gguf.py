"""GGUF files of this family: what llama.cpp's export does to a checkpoint is undone, and what does not fit refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

import tiny_qwen35 as tiny
from tiny_qwen35_gguf import HEADS, P, exported, metadata

from ninfer_core.api import ArtifactError, EncodedTensor, Source, SourceTensor
from ninfer_core.testing import Opened, compose
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.family import adapt, mtp_inventory
from ninfer_qwen35.from_gguf import tiled_places
from ninfer_qwen35.names import inventory


def stored(name: str, x: Tensor, form: str) -> SourceTensor:
    x = x.contiguous()
    if form == "gguf_q8_0":
        data = torch.from_numpy(gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.Q8_0)).reshape(-1)
        layout = "gguf_blocks_v1"
    else:
        data, layout = x.reshape(-1).view(torch.uint8), "contiguous_le_v1"
    encoded = EncodedTensor(format=form, layout=layout, shape=tuple(x.shape), data=data)
    return SourceTensor(name=name, format=form, shape=tuple(x.shape), read=lambda: encoded)


def checkpoint(
    *, moe: bool = False, packed: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], dict[str, Tensor], Source]:
    """config.json, its tensors, and the file exported from them."""
    c = tiny.config(moe=moe, **HEADS)
    # bf16 numbers, as the official checkpoints have them
    tensors = {n: x.bfloat16().float() for n, x in tiny.random_tensors(tiny.shapes(c, vision=False)).items()}
    found = {}
    for name, x in tensors.items():
        for other, value in exported(name, x):
            form = "gguf_q8_0" if other.split(".", 2)[-1] in packed else "fp32"
            found[other] = stored(other, value, form)
    config = metadata(c)
    source = Source(
        kind="gguf", path="m.gguf", architecture=config["general.architecture"], config=config, tensors=found
    )
    return c, tensors, source


def opened(source: Source) -> Opened:
    return Opened(source, compose({"qwen35", "gguf"}), QWEN35)


def logits_of(found: Opened, *, reference: bool = True) -> Tensor:
    return found.rig(reference=reference).feed({0: [5, 80, 3, 44, 9, 12, 70]})[0]


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_an_export_reads_as_the_checkpoint_it_was_made_from(tmp_path, moe):
    c, tensors, file = checkpoint(moe=moe)
    ours, theirs = opened(file), opened(tiny.source(tmp_path, c, tensors))
    assert ours.warnings == ()
    assert ours.checkpoint.config == theirs.checkpoint.config
    assert dict(ours.checkpoint.companions) == dict(theirs.checkpoint.companions)
    assert set(ours.checkpoint.names()) == set(theirs.checkpoint.names()) == set(ours.inventory)
    for name in ours.inventory:
        # ln(e^A) and (1 + w) - 1 round once more
        torch.testing.assert_close(ours.value(name), theirs.value(name), rtol=1e-6, atol=1e-6, msg=name)


def test_fused_experts_of_newer_files_read_the_same():
    _, tensors, file = checkpoint(moe=True)
    found = dict(file.tensors)
    for i in range(5):
        gate_up = tensors[
            "mtp.layers.0.mlp.experts.gate_up_proj" if i == 4 else f"{P}layers.{i}.mlp.experts.gate_up_proj"
        ]
        del found[f"blk.{i}.ffn_gate_exps.weight"], found[f"blk.{i}.ffn_up_exps.weight"]
        found[f"blk.{i}.ffn_gate_up_exps.weight"] = stored(f"blk.{i}.ffn_gate_up_exps.weight", gate_up, "fp32")
    ours = opened(Source(kind="gguf", path="m", architecture="qwen35moe", config=file.config, tensors=found))
    gate_up = tensors[f"{P}layers.2.mlp.experts.gate_up_proj"]
    assert torch.equal(ours.value("text/layers/2/moe/experts/3/gate"), gate_up[3, :16])
    assert torch.equal(ours.value("text/layers/2/moe/experts/5/up"), gate_up[5, 16:])


PACKED = frozenset(("ssm_out.weight", "attn_qkv.weight", "attn_gate.weight", "attn_q.weight", "ffn_up.weight"))


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "packed"])
def test_packed_matrices_stay_packed_and_mean_the_same(reference):
    """Rows move as encoded rows; the columns of an output stay in their blocks, and its input is reordered instead."""
    _, _, file = checkpoint(packed=PACKED)
    kept = opened(file)
    for name in ("gdn/output", "gdn/value", "gdn/z"):
        assert kept.forms(f"text/layers/0/{name}") == ["gguf_q8_0"]
    [output] = kept.checkpoint.pieces("text/layers/0/gdn/output", kept.inventory["text/layers/0/gdn/output"])
    assert output.columns is not None
    unpacked = {
        name: stored(name, torch.from_numpy(dequantized(tensor)), "fp32") if tensor.format != "fp32" else tensor
        for name, tensor in file.tensors.items()
    }
    plain = Source(kind="gguf", path="m", architecture="qwen35", config=file.config, tensors=unpacked)
    got = logits_of(kept, reference=reference)
    torch.testing.assert_close(got, logits_of(opened(plain)), rtol=0, atol=2e-4)


def dequantized(tensor: SourceTensor) -> Any:
    data = tensor.read().data.numpy().reshape(tensor.shape[0], -1)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q8_0)


def test_heads_are_tiled_as_the_specification_says():
    places = tiled_places(16, 48)
    assert places == tuple((h % 3) * 16 + h // 3 for h in range(48))
    assert tiled_places(16, 16) == tuple(range(16))


def with_metadata(file: Source, **changes: Any) -> Source:
    config = {key: value for key, value in {**file.config, **changes}.items() if value is not ...}
    return Source(kind="gguf", path="m.gguf", architecture=file.architecture, config=config, tensors=file.tensors)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"qwen35.ssm.group_count": ...}, "qwen35.ssm.group_count is missing"),
    "wrong type": ({"qwen35.block_count": "4"}, "qwen35.block_count is '4'; expected a whole number"),
    "inner size": (
        {"qwen35.ssm.inner_size": 193},
        "qwen35.ssm.inner_size 193 is not a multiple of ssm.time_step_rank 6",
    ),
    "value length": (
        {"qwen35.attention.value_length": 64},
        "attention.value_length 64 is not implemented; accepted: 32",
    ),
    "sections": ({"qwen35.rope.dimension_sections": [3, 3]}, "rope.dimension_sections is [3, 3]; expected three"),
    "a fourth axis": ({"qwen35.rope.dimension_sections": [3, 3, 1, 1]}, "expected three numbers and a 0"),
    "sections that do not interleave": ({"qwen35.rope.dimension_sections": [4, 4, 0, 0]}, "cannot be interleaved"),
    "scaling": ({"qwen35.rope.scaling.type": "longrope"}, "rope.scaling.type 'longrope' is not implemented"),
    "several MTP blocks": ({"qwen35.nextn_predict_layers": 2}, "qwen35.nextn_predict_layers 2 is not implemented"),
    "not causal": ({"qwen35.attention.causal": False}, "qwen35.attention.causal False is not implemented"),
    "rotated weights": ({"prism.hadamard.version": 1}, "rotated weights are not implemented"),
}


@pytest.mark.parametrize("change", BAD)
def test_metadata_that_does_not_fit_is_refused_by_key(change):
    changes, message = BAD[change]
    with pytest.raises(ArtifactError) as refused:
        adapt(with_metadata(checkpoint()[2], **changes))
    assert str(refused.value).startswith("m.gguf: ")
    assert message in str(refused.value)


def test_unknown_metadata_is_a_warning_that_names_it():
    plan = adapt(with_metadata(checkpoint()[2], **{"qwen35.novelty": 1, "other.key": 2}))
    assert plan.warnings == ("m.gguf: unknown key 'qwen35.novelty' is ignored",)


def test_yarn_of_the_file_is_kept():
    changes = {
        "qwen35.rope.scaling.type": "yarn",
        "qwen35.rope.scaling.factor": 4.0,
        "qwen35.rope.scaling.original_context_length": 128,
    }
    plan = adapt(with_metadata(checkpoint()[2], **changes))
    assert plan.config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("blk.0.ssm_a"), "tensor 'blk.0.ssm_a' is missing"),
        (lambda t: t.update(extra=stored("extra", torch.zeros(2), "fp32")), "tensor 'extra' is not part of a Qwen3.5"),
        (
            lambda t: t.update({"blk.3.attn_q.weight": stored("blk.3.attn_q.weight", torch.zeros(128, 32), "fp32")}),
            "tensor 'blk.3.attn_q.weight' has shape [128, 32]; expected [256, 32]",
        ),
    ],
    ids=["missing", "unknown", "misshapen"],
)
def test_tensors_that_do_not_fit_are_refused_by_name(spoil, message):
    file = checkpoint()[2]
    tensors = dict(file.tensors)
    spoil(tensors)
    with pytest.raises(ArtifactError) as refused:
        adapt(Source(kind="gguf", path="m.gguf", architecture="qwen35", config=file.config, tensors=tensors))
    assert message in str(refused.value)


def test_a_file_without_its_mtp_block_serves_and_one_with_half_of_it_says_so():
    file = checkpoint()[2]
    without = {name: tensor for name, tensor in file.tensors.items() if not name.startswith("blk.4.")}
    changes = {"qwen35.nextn_predict_layers": 0, "qwen35.block_count": 4}
    config = {**file.config, **changes}
    plan = adapt(Source(kind="gguf", path="m.gguf", architecture="qwen35", config=config, tensors=without))
    assert (dict(plan.companions), plan.warnings) == ({}, ())
    half = {name: tensor for name, tensor in file.tensors.items() if name != "blk.4.nextn.enorm.weight"}
    plan = adapt(Source(kind="gguf", path="m.gguf", architecture="qwen35", config=file.config, tensors=half))
    assert plan.warnings == ("m.gguf: tensor 'blk.4.nextn.enorm.weight' is missing; the MTP block is left out",)


def test_a_decay_that_is_none_is_refused_when_it_is_read():
    file = checkpoint()[2]
    tensors = {**file.tensors, "blk.1.ssm_a": stored("blk.1.ssm_a", torch.ones(6), "fp32")}
    found = opened(Source(kind="gguf", path="m.gguf", architecture="qwen35", config=file.config, tensors=tensors))
    with pytest.raises(ArtifactError, match=r"^m.gguf: tensor 'blk.1.ssm_a' has a value that is not below 0"):
        found.value("text/layers/1/gdn/a_log")


def test_the_inventory_is_complete_from_a_file_too():
    from ninfer_qwen35.config import read

    plan = adapt(checkpoint(moe=True)[2])
    c = read(plan.config)
    wanted = inventory(c) | dict(mtp_inventory(plan.config))
    assert {name: tuple(recipe.shape) for name, recipe in plan.parameters.items()} == wanted
