"""Importing a Hugging Face folder: what is read, what is warned about, what is refused."""

from dataclasses import replace

import pytest

from ninfer_core.api import ArtifactError, Source, SourceTensor
from ninfer_llama.config import read
from ninfer_llama.family import adapt
from ninfer_llama.from_huggingface import read as read_config
from ninfer_llama.names import huggingface_name, inventory

# config.json of SmolLM2-135M-Instruct, made small
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 36,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 64,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 50,
}


def source(changes=None, *, tensors=None) -> Source:
    """A folder of the right tensors, ``changes`` made to its config and ``tensors`` (None: gone) to them."""
    config = {key: value for key, value in {**CONFIG, **(changes or {})}.items() if value is not ...}
    tied = config.get("tie_word_embeddings", False)
    shapes = {
        huggingface_name(name): shape
        for name, shape in inventory(read(read_config(config, "config.json")[0])).items()
        if not (tied and name == "text/output_head")
    }
    shapes |= tensors or {}
    return bare(config, {name: shape for name, shape in shapes.items() if shape is not None})


def bare(config, shapes) -> Source:
    def unread():
        raise AssertionError("a plan is made without reading a tensor")

    return Source(
        kind="huggingface",
        path="folder",
        architecture="LlamaForCausalLM",
        config=config,
        tensors={
            name: SourceTensor(name=name, format="bf16", shape=shape, read=unread) for name, shape in shapes.items()
        },
    )


def test_a_real_config_imports_without_a_warning():
    plan = adapt(source())
    assert plan.warnings == ()
    assert plan.architecture == "LlamaForCausalLM"
    assert plan.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 36,
        "vocab_size": 50,
        "num_hidden_layers": 2,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-05,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 4,
        "intermediate_size": 64,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert plan.parameters["text/output_head"] == plan.parameters["text/token_embedding"]
    assert plan.parameters["text/layers/1/mlp/up"].tensors == ("model.layers.1.mlp.up_proj.weight",)


def test_what_transformers_defaults_may_be_absent():
    absent = ("num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "eos_token_id")
    config = adapt(source({**dict.fromkeys(absent, ...), "bos_token_id": None})).config
    assert [config[key] for key in absent] == [9, 1e-6, 10000.0, False, None]
    assert config["bos_token_id"] is None


def test_unknown_keys_are_warned_about_by_name():
    changes = {"novel_gate": 3, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "novel": 1}}
    assert adapt(source(changes)).warnings == (
        "folder: config.json: unknown key 'novel_gate' is ignored",
        "folder: config.json: unknown key 'rope_scaling.novel' is ignored",
    )


def test_end_tokens_beyond_the_vocabulary_are_left_out_with_a_warning():
    found = adapt(source({"vocab_size": 40, "eos_token_id": [2, 40], "bos_token_id": 99}))
    assert (found.config["eos_token_id"], found.config["bos_token_id"]) == ([2], None)
    assert found.warnings == (
        "folder: config.json: bos_token_id 99 is beyond the vocabulary of 40 tokens (0 to 39) and is ignored",
        "folder: config.json: eos_token_id 40 is beyond the vocabulary of 40 tokens (0 to 39) and is ignored",
    )
    assert adapt(source({"vocab_size": 40, "eos_token_id": 40})).config["eos_token_id"] is None


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES = {
    "transformers-5": ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
    "theta-beside": ({"rope_parameters": {"rope_type": "default"}}, 1e5, None),
    "old-type-key": (
        {"rope_scaling": {"type": "linear", "factor": 2}},
        1e5,
        {"rope_type": "linear", "factor": 2.0},
    ),
    "llama3": (
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 77}},
        1e5,
        {**LLAMA3, "original_max_position_embeddings": 77},
    ),
    "llama3-original-defaults-to-the-context": (
        {"rope_scaling": LLAMA3},
        1e5,
        {**LLAMA3, "original_max_position_embeddings": 8192},
    ),
}


@pytest.mark.parametrize(("changes", "theta", "scaling"), ROPES.values(), ids=ROPES)
def test_both_spellings_of_rope_are_read(changes, theta, scaling):
    config = adapt(source(changes)).config
    assert (config["rope_theta"], config["rope_scaling"]) == (theta, scaling)


REFUSED_KEYS = {
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; accepted: silu"),
    "tensor-parallel": ({"pretraining_tp": 2}, "pretraining_tp 2 is not implemented; accepted: 1"),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4} is not implemented"),
    "sliding-window": ({"sliding_window": 4096}, "sliding_window 4096 is not implemented; accepted: null"),
    "interleaved": ({"rope_interleaved": True}, "rope_interleaved True is not implemented"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
    "model-type": ({"model_type": "mistral"}, "model_type 'mistral' is not implemented; accepted: llama"),
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling.rope_type 'dynamic' is not implemented; accepted: default, linear, llama3",
    ),
    "yarn": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        "rope_parameters.rope_type 'yarn' is not implemented",
    ),
    "list-for-rope-type": ({"rope_parameters": {"rope_type": []}}, "rope_parameters.rope_type [] is not implemented"),
    "object-for-rope-type": (
        {"rope_scaling": {"rope_type": {}, "factor": 2.0}},
        "rope_scaling.rope_type {} is not implemented",
    ),
    "partial-in-rope": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "rope_parameters.partial_rotary_factor 0.25 is not implemented",
    ),
    "rope-text": ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; expected an object"),
    "no-factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling: object missing required field `factor`"),
    "missing": ({"vocab_size": ...}, "vocab_size is missing"),
    "text-for-number": ({"hidden_size": "36"}, "hidden_size: expected `int`, got `str`"),
    "list-for-number": ({"num_attention_heads": [9, 9]}, "num_attention_heads: expected `int`, got `array`"),
    "indivisible": ({"hidden_size": 40}, "hidden_size 40 is not a multiple of num_attention_heads 9"),
    "groups": ({"num_key_value_heads": 4}, "num_attention_heads 9 is not a multiple of num_key_value_heads 4"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED_KEYS.values(), ids=REFUSED_KEYS)
def test_a_value_that_is_not_implemented_is_refused(changes, message):
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    with pytest.raises(ArtifactError) as refusal:
        adapt(bare(config, {}))
    assert str(refusal.value).startswith(f"folder: config.json: {message}")


REFUSED_TENSORS = {
    "missing": ({"model.norm.weight": None}, "tensor 'model.norm.weight' is missing"),
    "missing-head": (
        {"lm_head.weight": None},
        "tensor 'lm_head.weight' is missing",
    ),
    "wrong-shape": (
        {"model.layers.1.self_attn.k_proj.weight": (36, 36)},
        "tensor 'model.layers.1.self_attn.k_proj.weight' has shape [36, 36]; expected [12, 36]",
    ),
    "leftover": (
        {"model.layers.0.self_attn.q_norm.weight": (4,)},
        "tensor 'model.layers.0.self_attn.q_norm.weight' is not part of a llama model",
    ),
    "more-layers": (
        {"model.layers.2.mlp.up_proj.weight": (64, 36), "model.layers.2.mlp.gate_proj.weight": (64, 36)},
        "tensor 'model.layers.2.mlp.up_proj.weight' and 1 more is not part of a llama model",
    ),
    "bias-without-its-key": (
        {"model.layers.0.mlp.up_proj.bias": (64,)},
        "tensor 'model.layers.0.mlp.up_proj.bias' is not part of a llama model",
    ),
}


@pytest.mark.parametrize(("tensors", "message"), REFUSED_TENSORS.values(), ids=REFUSED_TENSORS)
def test_tensors_that_do_not_fit_are_refused(tensors, message):
    with pytest.raises(ArtifactError) as refusal:
        adapt(source({"tie_word_embeddings": False}, tensors=tensors))
    assert str(refusal.value) == f"folder: {message}"


def test_rotary_buffers_and_the_copy_of_a_tied_head_are_left_out():
    plan = adapt(source(tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": (2,), "lm_head.weight": (50, 36)}))
    used = {name for recipe in plan.parameters.values() for name in recipe.tensors}
    assert not used & {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}


def test_a_source_of_another_kind_is_refused():
    with pytest.raises(ArtifactError, match="reads huggingface and gguf sources, not 'onnx'"):
        adapt(replace(source(), kind="onnx"))
