"""What configs are accepted: the artifact's closed key set, and config.json of Hugging Face."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

import tiny_qwen35 as tiny

from ninfer_core.api import ArtifactError, KVGeometry
from ninfer_qwen35 import family
from ninfer_qwen35.config import interleaved_axes, read, to_dict
from ninfer_qwen35.huggingface_config import read as from_huggingface
from ninfer_qwen35.names import inventory, mtp_inventory


def artifact(**how: Any) -> dict[str, Any]:
    """The artifact's text config of the tiny checkpoint."""
    raw, warnings = from_huggingface(tiny.config(**how), tiny.config(**how)["architectures"][0], "config.json")
    assert warnings == []
    return to_dict(read(raw))


# config.json of Qwen/Qwen3.6-27B and Qwen3.6-35B-A3B, text only
COMMON_27B = {
    "vocab_size": 248320,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "partial_rotary_factor": 0.25,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "eos_token_id": 248044,
    "dtype": "bfloat16",
    "initializer_range": 0.02,
    "use_cache": True,
}
DENSE_27B = COMMON_27B | {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
    "intermediate_size": 17408,
    "mlp_only_layers": [],
}
MOE_35B = COMMON_27B | {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
}


def published(text: dict[str, Any]) -> dict[str, Any]:
    moe = "Moe" if "num_experts" in text else ""
    top = {
        "architectures": [f"Qwen3_5{moe}ForConditionalGeneration"],
        "tie_word_embeddings": False,
        "text_config": text,
    }
    raw, warnings = from_huggingface(top, top["architectures"][0], "config.json")
    assert warnings == []
    return to_dict(read(raw))


def test_the_published_models_have_the_published_geometry():
    dense, moe = published(DENSE_27B), published(MOE_35B)
    assert [i for i, kind in enumerate(dense["layer_types"]) if kind == "full_attention"] == list(range(3, 64, 4))
    assert family.kv_geometry(dense) == KVGeometry(heads=(4,) * 16, head_dims=(256,) * 16)
    assert family.kv_geometry(moe) == KVGeometry(heads=(2,) * 10, head_dims=(256,) * 10)
    assert family.context_length(dense) == 262144
    assert family.context_limit(dense) == 1048576
    assert dense["rms_norm_eps"] == 9.999999974752427e-07  # floats are stored as fp32 rounds them
    assert dense["rope_parameters"] == {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    }
    assert set(dense) - set(moe) == {"intermediate_size"}


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        # spec/family-qwen35.md §1.2: the whole model without its vision tower
        (DENSE_27B, 27_781_427_952 - 460_730_096),
        (MOE_35B, 35_951_822_704 - 446_571_248),
    ],
    ids=["27B", "35B-A3B"],
)
def test_the_inventory_adds_up_to_the_published_parameter_count(text, elements):
    import math

    c = read(published(text))
    shapes = [*inventory(c).values(), *mtp_inventory(c).values()]
    assert sum(map(math.prod, shapes)) == elements


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_a_config_survives_being_stored(moe):
    c = artifact(moe=moe)
    assert to_dict(read(c)) == c
    assert None not in c.values()


def test_axes_are_interleaved_as_the_sections_say():
    assert interleaved_axes([11, 11, 10]) == (0, 1, 2) * 10 + (0, 1)
    assert interleaved_axes([3, 3, 2]) == (0, 1, 2, 0, 1, 2, 0, 1)


@pytest.mark.parametrize("sections", [[4, 4, 0], [2, 3, 3], [5, 0, 3], [1, 4, 3]], ids=str)
def test_sections_that_do_not_interleave_are_refused(sections):
    with pytest.raises(ValueError, match="cannot be interleaved"):
        interleaved_axes(sections)
    rope = {**tiny.TEXT["rope_parameters"], "mrope_section": sections}
    place = rf"mrope_section.*\[{', '.join(map(str, sections))}\]"
    with pytest.raises(ArtifactError, match=place):
        artifact(rope_parameters=rope)


BAD_ARTIFACTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"surprise": 1}, 'unknown member "surprise"'),
    "wrong type": ({"hidden_size": "big"}, "hidden_size: expected `int`, got `str`"),
    "a float for a count": ({"hidden_size": 2.5}, "hidden_size: expected `int`, got `float`"),
    "a boolean for a count": ({"num_hidden_layers": True}, "num_hidden_layers: expected `int`, got `bool`"),
    "zero": ({"num_attention_heads": 0}, "num_attention_heads"),
    "missing": ({"hidden_size": None}, "missing required field `hidden_size`"),
    "missing with attention": ({"head_dim": None}, "head_dim is missing"),
    "missing with linear attention": ({"linear_key_head_dim": None}, "linear_key_head_dim is missing"),
    "missing when dense": ({"intermediate_size": None}, "intermediate_size is missing"),
    "dense and experts": ({"num_experts": 4}, "num_experts belongs to experts"),
    "layers": ({"num_hidden_layers": 5}, "layer_types names 4 layers; num_hidden_layers is 5"),
    "kind of layer": ({"layer_types": ["sliding"] * 4}, "layer_types"),
    "other member of rope": (
        {"rope_parameters": {**tiny.TEXT["rope_parameters"], "factor": 2.0}},
        "rope_parameters: object contains unknown field",
    ),
    "heads": ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    "value heads": (
        {"linear_num_key_heads": 3},
        "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3",
    ),
    "infinite": ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; expected a finite number above 0"),
    "architecture and type": ({"model_type": "qwen3_5_moe_text"}, "does not go with Qwen3_5ForCausalLM"),
    "rotates too much": (
        {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.0, "mrope_section": [3, 3, 2]}},
        "covers 8 pairs; head_dim 32 with partial_rotary_factor 1 rotates 32 elements, which is 16",
    ),
}


@pytest.mark.parametrize("change", BAD_ARTIFACTS)
def test_a_bad_artifact_config_is_refused_by_key(change):
    values, message = BAD_ARTIFACTS[change]
    c = artifact() | values
    with pytest.raises(ArtifactError) as refused:
        read({key: value for key, value in c.items() if value is not None})
    assert str(refused.value).startswith("text config: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_dense_key_among_experts_is_refused():
    with pytest.raises(ArtifactError, match="intermediate_size belongs to a dense model"):
        read(artifact(moe=True) | {"intermediate_size": 8})
    with pytest.raises(ArtifactError, match="num_experts_per_tok 7 exceeds num_experts 6"):
        read(artifact(moe=True) | {"num_experts_per_tok": 7})


def test_linear_attention_keys_without_such_layers_are_refused():
    c = artifact() | {"layer_types": ["full_attention"] * 4}
    with pytest.raises(ArtifactError, match="linear_num_key_heads belongs to linear attention"):
        read(c)


# Hugging Face

UNIMPLEMENTED: dict[str, Any] = {
    "hidden_act": "gelu",
    "attention_bias": True,
    "attn_output_gate": False,
    "output_gate_type": "sigmoid",
    "mamba_ssm_dtype": "bfloat16",
    "mlp_only_layers": [0],
    "mtp_num_hidden_layers": 2,
    "mtp_use_dedicated_embeddings": True,
    "sliding_window": 4096,
    "use_sliding_window": True,
    "norm_topk_prob": False,
}


@pytest.mark.parametrize("key", UNIMPLEMENTED)
def test_a_known_key_with_an_unimplemented_value_is_refused_by_name(key):
    c = tiny.config(**{key: UNIMPLEMENTED[key]})
    with pytest.raises(ArtifactError, match=rf"^config.json: {key} .* is not implemented; accepted: "):
        from_huggingface(c, c["architectures"][0], "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_type": "linear"}, "rope_type 'linear' is not implemented; accepted: default, yarn"),
        ({"mrope_interleaved": False}, "mrope_interleaved False is not implemented; accepted: True"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_type": "yarn"}, "factor is missing"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 64}, "beta_fast 64 is not implemented"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_rotary_embedding_that_is_not_implemented_is_refused(change, message):
    c = tiny.config()
    rope = {key: value for key, value in (c["text_config"]["rope_parameters"] | change).items() if value is not None}
    with pytest.raises(ArtifactError, match=message):
        from_huggingface(tiny.config(rope_parameters=rope), c["architectures"][0], "config.json")


def test_unknown_keys_are_warnings_that_name_them():
    c = tiny.config(novelty=1) | {"other": 2}
    c["text_config"]["rope_parameters"]["spin"] = 3
    _, warnings = from_huggingface(c, c["architectures"][0], "config.json")
    assert warnings == [
        "config.json: unknown key 'other' is ignored",
        "config.json: unknown key 'text_config.novelty' is ignored",
        "config.json: unknown key 'rope_parameters.spin' is ignored",
    ]


def test_a_text_only_config_has_everything_at_the_top():
    c = tiny.config()
    flat = c["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"], "tie_word_embeddings": True}
    raw, warnings = from_huggingface(flat, "Qwen3_5ForCausalLM", "config.json")
    assert warnings == []
    assert raw["tie_word_embeddings"] is True
    nested, _ = from_huggingface(c, c["architectures"][0], "config.json")
    assert raw | {"tie_word_embeddings": False} == nested


@pytest.mark.parametrize(("top", "text", "tied"), [(True, False, True), (None, True, True), (None, None, False)])
def test_the_top_of_the_config_says_whether_the_head_is_tied(top, text, tied):
    c = tiny.config(tie_word_embeddings=text)
    if top is None:
        del c["tie_word_embeddings"]
    else:
        c["tie_word_embeddings"] = top
    assert from_huggingface(c, c["architectures"][0], "config.json")[0]["tie_word_embeddings"] is tied


def test_older_configs_keep_theta_and_the_rotated_share_beside_rope_parameters():
    rope = {"rope_type": "default", "mrope_section": [3, 3, 2], "mrope_interleaved": True}
    c = tiny.config(rope_parameters=rope, rope_theta=1e7, partial_rotary_factor=0.5)
    raw, warnings = from_huggingface(c, c["architectures"][0], "config.json")
    assert warnings == []
    assert read(raw).attention.rotary_dim == 16


def test_layers_without_a_list_follow_the_interval():
    c = tiny.config(layer_types=None, full_attention_interval=2)
    raw, _ = from_huggingface(c, c["architectures"][0], "config.json")
    assert raw["layer_types"] == ["linear_attention", "full_attention"] * 2
    with pytest.raises(ArtifactError, match="full_attention_interval is 0"):
        bad = tiny.config(layer_types=None, full_attention_interval=0)
        from_huggingface(bad, bad["architectures"][0], "config.json")


def test_a_config_of_the_other_kind_is_refused():
    c = tiny.config()
    with pytest.raises(ArtifactError, match="model_type 'qwen3_5_text' is not implemented; accepted: qwen3_5_moe_text"):
        from_huggingface(c, "Qwen3_5MoeForConditionalGeneration", "config.json")


def test_the_yarn_of_a_checkpoint_is_kept_with_its_native_window():
    rope = {**tiny.TEXT["rope_parameters"], "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    c = artifact(rope_parameters=rope)
    assert c["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert family.context_length(c) == 128
    assert family.context_limit(c) == 512
