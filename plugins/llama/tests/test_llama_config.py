"""The artifact's text config is a closed set of keys with checked values."""

import pytest

from ninfer_core.api import ArtifactError, KVGeometry
from ninfer_llama import family
from ninfer_llama.config import read, to_dict

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "vocab_size": 100,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eos_token_id": 2},
        {"eos_token_id": None, "bos_token_id": None},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "divided", "factors": [1.0, 1.0, 2.0, 8.0]}},
    ],
    ids=str,
)
def test_a_config_survives_being_stored(changes):
    config = {**GOOD, **changes}
    assert to_dict(read(config)) == config


BAD = {
    "unknown": ({"sliding_window": 5}, 'unknown member "sliding_window"'),
    "missing": ({"hidden_size": ...}, "object missing required field `hidden_size`"),
    "wrong-type": ({"hidden_size": "48"}, "hidden_size: expected `int`, got `str`"),
    "bool-for-int": ({"hidden_size": True}, "hidden_size: expected `int`, got `bool`"),
    "zero": ({"num_hidden_layers": 0}, "num_hidden_layers: expected `int` >= 1"),
    "huge": ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected `int` <= 4096"),
    "eps": ({"rms_norm_eps": 0.0}, "rms_norm_eps: expected `float` > 0"),
    "infinite-theta": ({"rope_theta": float("inf")}, "rope_theta is inf; expected a finite number above 0"),
    "nan-theta": ({"rope_theta": float("nan")}, "rope_theta"),
    "heads": ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
    "odd-head": ({"head_dim": 7}, "head_dim 7 is odd"),
    "architecture": ({"architectures": ["MistralForCausalLM"]}, "invalid enum value 'MistralForCausalLM'"),
    "rope-kind": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "invalid value 'yarn'"),
    "rope-member": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "unknown field `beta`"),
    "rope-band": ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor 1.0 must be above"),
    "rope-factors": ({"rope_scaling": {"rope_type": "divided", "factors": [1.0]}}, "1 factors; head_dim 8 needs 4"),
    "eos": ({"eos_token_id": [2, -1]}, "eos_token_id"),
    "eos-beyond": (
        {"vocab_size": 9, "eos_token_id": [2, 9]},
        "eos_token_id 9 is beyond the vocabulary of 9 tokens (0 to 8)",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_a_bad_config_is_refused_with_the_key_named(changes, message):
    config = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    with pytest.raises(ArtifactError) as refusal:
        family.inventory(config)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_descriptor_answers_from_the_config():
    assert family.context_length(GOOD) == 256
    assert family.hidden_size(GOOD) == 48
    assert family.kv_geometry(GOOD) == KVGeometry(heads=(2, 2), head_dims=(8, 8))
    shapes = family.inventory({**GOOD, "attention_bias": True})
    assert shapes["text/layers/1/attention/key"] == (16, 48)
    assert shapes["text/layers/1/attention/output_bias"] == (48,)
    assert "text/layers/1/mlp/gate_bias" not in shapes
