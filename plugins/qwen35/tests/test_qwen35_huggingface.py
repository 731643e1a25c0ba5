"""Tensors of a Hugging Face folder as this family's parameters, and what is refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

import tiny_qwen35 as tiny

from ninfer_core.api import ArtifactError
from ninfer_core.testing import Opened, compose
from ninfer_qwen35 import QWEN35
from ninfer_qwen35.from_huggingface import plan

P = "model.language_model."
GDN, FULL = f"{P}layers.0.", f"{P}layers.3."


def opened(path: str) -> Opened:
    return Opened(path, compose({"qwen35"}))


def values(path: str) -> Callable[[str], Tensor]:
    """Parameter name -> its decoded numbers."""
    return opened(path).value


def test_every_tensor_finds_its_place(tmp_path):
    c = tiny.config()
    tensors = tiny.random_tensors(tiny.shapes(c))
    read = values(tiny.write(tmp_path, c, tensors))
    assert torch.equal(read("text/token_embedding"), tensors[f"{P}embed_tokens.weight"])
    assert torch.equal(read("text/output_head"), tensors["lm_head.weight"])
    assert torch.equal(read("text/final_norm"), tensors[f"{P}norm.weight"])
    assert torch.equal(read("mtp/input_projection"), tensors["mtp.fc.weight"])
    assert torch.equal(read("mtp/hidden_norm"), tensors["mtp.pre_fc_norm_hidden.weight"])
    assert torch.equal(read("mtp/layers/0/mlp/down"), tensors["mtp.layers.0.mlp.down_proj.weight"])
    stacked = tensors[f"{GDN}linear_attn.in_proj_qkv.weight"]
    assert torch.equal(read("text/layers/0/gdn/query"), stacked[:16])
    assert torch.equal(read("text/layers/0/gdn/key"), stacked[16:32])
    assert torch.equal(read("text/layers/0/gdn/value"), stacked[32:])
    convolution = tensors[f"{GDN}linear_attn.conv1d.weight"]
    assert torch.equal(read("text/layers/0/gdn/convolution"), convolution[:, 0].t())


@pytest.mark.parametrize("layer", ["text/layers/3/", "mtp/layers/0/"])
def test_queries_and_gates_are_taken_apart_head_by_head(tmp_path, layer):
    c = tiny.config()
    tensors = tiny.random_tensors(tiny.shapes(c))
    read = values(tiny.write(tmp_path, c, tensors))
    foreign = {"text/layers/3/": FULL, "mtp/layers/0/": "mtp.layers.0."}[layer]
    by_head = tensors[f"{foreign}self_attn.q_proj.weight"].view(4, 2, 32, 32)
    assert torch.equal(read(f"{layer}attention/query"), by_head[:, 0].reshape(128, 32))
    assert torch.equal(read(f"{layer}attention/gate"), by_head[:, 1].reshape(128, 32))


def test_fused_experts_are_cut_gate_first(tmp_path):
    c = tiny.config(moe=True)
    tensors = tiny.random_tensors(tiny.shapes(c))
    read = values(tiny.write(tmp_path, c, tensors))
    gate_up, down = tensors[f"{GDN}mlp.experts.gate_up_proj"], tensors[f"{GDN}mlp.experts.down_proj"]
    for e in (0, 5):
        stem = f"text/layers/0/moe/experts/{e}/"
        assert torch.equal(read(stem + "gate"), gate_up[e, :16])
        assert torch.equal(read(stem + "up"), gate_up[e, 16:])
        assert torch.equal(read(stem + "down"), down[e])


def test_half_precision_tensors_stay_as_they_are_but_for_the_decays(tmp_path):
    c = tiny.config(moe=True)
    path = tiny.write(tmp_path, c, tiny.random_tensors(tiny.shapes(c), torch.bfloat16))
    found = opened(path)
    for name in found.inventory:
        decays = name.endswith(("gdn/a_log", "gdn/dt_bias"))
        assert found.forms(name) == ["fp32" if decays else "bf16"], name


def test_what_is_not_served_is_reported_and_not_loaded(tmp_path):
    found = opened(tiny.write(tmp_path, tiny.config()))
    assert not any("visual" in name for name in found.checkpoint.names())
    [warning] = found.warnings
    assert warning == f"{tmp_path}: the 2 tensors of the vision tower are not used: text is served"


def test_an_mtp_block_that_is_not_whole_is_left_out_and_named(tmp_path):
    c = tiny.config()
    tensors = tiny.random_tensors(tiny.shapes(c, vision=False))
    del tensors["mtp.norm.weight"]
    found = opened(tiny.write(tmp_path, c, tensors))
    assert dict(found.checkpoint.companions) == {}
    assert not any(name.startswith("mtp/") for name in found.checkpoint.names())
    [warning] = found.warnings
    assert "tensor 'mtp.norm.weight' is missing; the MTP block is left out" in warning


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_a_whole_mtp_block_is_a_companion(tmp_path, moe):
    found = opened(tiny.write(tmp_path, tiny.config(moe=moe)))
    assert dict(found.checkpoint.companions) == {"mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]}}
    assert found.checkpoint.has("mtp/input_projection")


def test_buffers_and_the_copy_of_a_tied_head_are_ignored(tmp_path):
    c = tiny.config() | {"tie_word_embeddings": True}
    tensors = tiny.random_tensors(tiny.shapes(c))
    tensors["lm_head.weight"] = torch.zeros(tiny.VOCAB, 32)
    tensors[f"{FULL}self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    read = values(tiny.write(tmp_path, c, tensors))
    assert torch.equal(read("text/output_head"), tensors[f"{P}embed_tokens.weight"])


def test_the_prefix_of_text_only_exports_is_found(tmp_path):
    c = tiny.config()
    tensors = tiny.random_tensors(tiny.shapes(c, vision=False))
    plain = {name.replace(P, "model."): tensor for name, tensor in tensors.items()}
    read = values(tiny.write(tmp_path, c, plain))
    assert torch.equal(read("text/final_norm"), plain["model.norm.weight"])


Spoil = Callable[[dict[str, Tensor]], Any]
SPOILED: dict[str, tuple[Spoil, str]] = {
    "missing": (
        lambda t: t.pop(f"{GDN}linear_attn.A_log"),
        f"tensor '{GDN}linear_attn.A_log' is missing",
    ),
    "no head": (lambda t: t.pop("lm_head.weight"), "tensor 'lm_head.weight' is missing"),
    "wrong shape": (
        lambda t: t.update({f"{FULL}self_attn.q_proj.weight": torch.zeros(128, 32)}),
        f"tensor '{FULL}self_attn.q_proj.weight' has shape [128, 32]; expected [256, 32]",
    ),
    "transposed convolution": (
        lambda t: t.update({f"{GDN}linear_attn.conv1d.weight": torch.zeros(4, 1, 96)}),
        f"tensor '{GDN}linear_attn.conv1d.weight' has shape [4, 1, 96]; expected [96, 1, 4]",
    ),
    "wrong mtp": (
        lambda t: t.update({"mtp.fc.weight": torch.zeros(32, 32)}),
        "tensor 'mtp.fc.weight' has shape [32, 32]; expected [32, 64]",
    ),
    "unknown in the text model": (
        lambda t: t.update({f"{GDN}linear_attn.novelty": torch.zeros(2)}),
        f"tensor '{GDN}linear_attn.novelty' is not part of a Qwen3.5 model",
    ),
    "unknown in the block of a layer of the other kind": (
        lambda t: t.update({f"{GDN}self_attn.q_norm.weight": torch.zeros(32)}),
        f"tensor '{GDN}self_attn.q_norm.weight' is not part of a Qwen3.5 model",
    ),
    "a layer too many": (
        lambda t: t.update({f"{P}layers.4.input_layernorm.weight": torch.zeros(32)}),
        f"tensor '{P}layers.4.input_layernorm.weight' is not part of a Qwen3.5 model",
    ),
    "unknown in the MTP block": (
        lambda t: t.update({"mtp.layers.1.input_layernorm.weight": torch.zeros(32)}),
        "tensor 'mtp.layers.1.input_layernorm.weight' is not part of a Qwen3.5 model",
    ),
    "a foreign tensor": (lambda t: t.update({"adapter.weight": torch.zeros(2)}), "tensor 'adapter.weight' is not part"),
    "another model": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith("model.")],
        "no tensor begins with model.language_model. or model.",
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(tmp_path, how):
    spoil, message = SPOILED[how]
    c = tiny.config()
    tensors = tiny.random_tensors(tiny.shapes(c))
    spoil(tensors)
    with pytest.raises(ArtifactError) as refused:
        plan(tiny.source(tmp_path, c, tensors))
    assert str(refused.value).startswith(f"{tmp_path}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


EXPERTS_SPOILED: dict[str, tuple[Spoil, str]] = {
    "half fused": (
        lambda t: t.pop(f"{GDN}mlp.experts.down_proj"),
        f"tensor '{GDN}mlp.experts.down_proj' is missing",
    ),
    "an expert too few": (
        lambda t: t.update({f"{GDN}mlp.experts.down_proj": torch.zeros(5, 32, 16)}),
        "has shape [5, 32, 16]; expected [6, 32, 16]",
    ),
    "no experts": (
        lambda t: [t.pop(f"{GDN}mlp.experts.{name}_proj") for name in ("gate_up", "down")],
        f"tensor '{GDN}mlp.experts.0.gate_proj.weight' is missing",
    ),
    "both forms": (
        lambda t: t.update({f"{GDN}mlp.experts.0.gate_proj.weight": torch.zeros(16, 32)}),
        f"tensor '{GDN}mlp.experts.0.gate_proj.weight' is not part",
    ),
}


@pytest.mark.parametrize("how", EXPERTS_SPOILED)
def test_experts_that_do_not_fit_are_refused(tmp_path, how):
    spoil, message = EXPERTS_SPOILED[how]
    c = tiny.config(moe=True)
    tensors = tiny.random_tensors(tiny.shapes(c))
    spoil(tensors)
    with pytest.raises(ArtifactError) as refused:
        plan(tiny.source(tmp_path, c, tensors))
    assert message in str(refused.value)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    """A 27B conversion streams: opening reads headers, a parameter reads its own tensors."""
    c = tiny.config(moe=True)
    source = tiny.source(tmp_path, c)
    asked: list[str] = []

    def noting(name: str, read: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            asked.append(name)
            return read()

        return noted

    import dataclasses

    watched = {
        name: dataclasses.replace(tensor, read=noting(name, tensor.read)) for name, tensor in source.tensors.items()
    }
    source = dataclasses.replace(source, tensors=watched)
    found = Opened(source, compose({"qwen35"}), QWEN35)
    for name in found.inventory:
        found.forms(name)
    assert asked == []
    found.value("text/layers/0/moe/experts/3/up")
    assert asked == [f"{GDN}mlp.experts.gate_up_proj"]
