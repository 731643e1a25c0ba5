"""Importing a GGUF file: metadata, row order, refusals. The file itself is the importer's affair."""

from dataclasses import replace

import pytest
import torch

from ninfer_core.api import ArtifactError, EncodedTensor, Source, SourceTensor
from ninfer_llama.config import read
from ninfer_llama.family import adapt
from ninfer_llama.from_gguf import read as read_metadata
from ninfer_llama.from_gguf import rotated_rows
from ninfer_llama.names import gguf_name, inventory

# the metadata of SmolLM2-135M-Instruct's file, made small
METADATA = {
    "general.architecture": "llama",
    "general.name": "Smollm2 135M",
    "general.file_type": 3,
    "llama.block_count": 2,
    "llama.context_length": 8192,
    "llama.embedding_length": 36,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.vocab_size": 50,
    "llama.rope.dimension_count": 4,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def vector(*values: float) -> EncodedTensor:
    data = torch.tensor(values, dtype=torch.float32).view(torch.uint8)
    return EncodedTensor(format="fp32", layout="contiguous_le_v1", shape=(len(values),), data=data)


def source(changes=None, *, tensors=None, factors=None, tied=True) -> Source:
    """A file of the right tensors, ``changes`` made to its metadata and ``tensors`` (None: gone) to them."""
    metadata = {key: value for key, value in {**METADATA, **(changes or {})}.items() if value is not ...}
    shapes = {"token_embd.weight": (50, 36)} | ({} if tied else {"output.weight": (50, 36)}) | (tensors or {})
    config = {**read_metadata(bare(METADATA, shapes)), "rope_scaling": None}
    shapes = {gguf_name(name): shape for name, shape in inventory(read(config)).items()} | shapes
    if tied:
        del shapes["output.weight"]
    return bare(metadata, shapes, factors)


def bare(metadata, shapes, factors=None) -> Source:
    def unread():
        raise AssertionError("a plan is made without reading a matrix")

    found = {
        name: SourceTensor(name=name, format="gguf_q4_1", shape=shape, read=unread)
        for name, shape in shapes.items()
        if shape is not None
    }
    if factors is not None:
        found["rope_freqs.weight"] = SourceTensor(
            name="rope_freqs.weight", format=factors.format, shape=factors.shape, read=lambda: factors
        )
    return Source(kind="gguf", path="m.gguf", architecture="llama", config=metadata, tensors=found)


def test_a_real_files_metadata_imports_without_a_warning():
    plan = adapt(source())
    assert plan.warnings == ()
    assert plan.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 36,
        "vocab_size": 50,
        "num_hidden_layers": 2,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "rms_norm_eps": 9.999999747378752e-06,
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


def test_query_and_key_rows_are_put_back_and_no_others():
    plan = adapt(source())
    query, key = (plan.parameters[f"text/layers/0/attention/{name}"].rows for name in ("query", "key"))
    assert query[:8] == (0, 2, 1, 3, 4, 6, 5, 7)
    assert (sorted(query), sorted(key)) == (list(range(36)), list(range(12)))
    others = [name for name, recipe in plan.parameters.items() if recipe.rows is not None]
    assert len(others) == 4


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 8), (2, 6)])
def test_the_row_order_undoes_llama_cpps(heads, head_dim):
    # the permutation of llama.cpp's converter: halves of a head become neighbours
    wanted = torch.arange(heads * head_dim)
    stored = wanted.view(heads, 2, head_dim // 2).transpose(1, 2).reshape(-1)
    assert torch.equal(stored[list(rotated_rows(heads, head_dim))], wanted)


def test_biases_are_found_by_their_tensors_and_reordered_with_their_rows():
    layers = range(2)
    biases = {f"blk.{i}.attn_{name}.bias": (size,) for i in layers for name, size in (("q", 36), ("k", 12), ("v", 12))}
    plan = adapt(source(tensors=biases | {f"blk.{i}.attn_output.bias": (36,) for i in layers}))
    assert plan.config["attention_bias"] is True
    assert plan.config["mlp_bias"] is False
    assert plan.parameters["text/layers/1/attention/key_bias"].rows == rotated_rows(3, 4)
    assert plan.parameters["text/layers/1/attention/value_bias"].rows is None


def test_an_output_matrix_means_an_untied_head():
    plan = adapt(source(tied=False))
    assert plan.config["tie_word_embeddings"] is False
    assert plan.parameters["text/output_head"].tensors == ("output.weight",)


def test_the_table_says_how_many_tokens_there_are():
    assert adapt(source({"llama.vocab_size": ...})).config["vocab_size"] == 50
    assert adapt(source({"llama.vocab_size": 48})).config["vocab_size"] == 50


def test_an_end_token_beyond_the_table_is_left_out_with_a_warning():
    found = adapt(source({"tokenizer.ggml.eos_token_id": 50}))
    assert found.config["eos_token_id"] is None
    assert [warning.partition(": ")[2] for warning in found.warnings] == [
        "eos_token_id 50 is beyond the vocabulary of 50 tokens (0 to 49) and is ignored"
    ]


ROPES = {
    "none": ({}, None, None),
    "type-none": ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None, None),
    "linear": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        None,
        {"rope_type": "linear", "factor": 4.0},
    ),
    "linear-by-one": ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None, None),
    "old-linear": ({"llama.rope.scale_linear": 2.0}, None, {"rope_type": "linear", "factor": 2.0}),
    "factors": ({}, vector(1.0, 8.0), {"rope_type": "divided", "factors": [1.0, 8.0]}),
    "factors-of-one": ({}, vector(1.0, 1.0), None),
}


@pytest.mark.parametrize(("changes", "factors", "scaling"), ROPES.values(), ids=ROPES)
def test_rope_scaling_is_read(changes, factors, scaling):
    assert adapt(source(changes, factors=factors)).config["rope_scaling"] == scaling


def test_unknown_keys_are_warned_about_by_name():
    assert adapt(source({"llama.novel": 1, "other.novel": 2})).warnings == (
        "m.gguf: unknown key 'llama.novel' is ignored",
    )


REFUSED = {
    "missing": ({"llama.block_count": ...}, "llama.block_count is missing"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count 8 is not implemented; accepted: 0"),
    "window": ({"llama.attention.sliding_window": 4096}, "llama.attention.sliding_window 4096 is not implemented"),
    "scale": ({"llama.logit_scale": 0.5}, "llama.logit_scale 0.5 is not implemented"),
    "partial": ({"llama.rope.dimension_count": 2}, "llama.rope.dimension_count 2 is not implemented; accepted: 4"),
    "value-length": ({"llama.attention.value_length": 8}, "llama.attention.value_length 8 is not implemented"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type 'yarn' is not implemented; accepted: none"),
    "heads-per-layer": ({"llama.attention.head_count": [9, 9]}, "num_attention_heads: expected `int`, got `array`"),
    "text": ({"llama.embedding_length": "36"}, "hidden_size: expected `int`, got `str`"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_metadata_that_is_not_implemented_is_refused(changes, message):
    with pytest.raises(ArtifactError) as refusal:
        adapt(source(changes))
    assert str(refusal.value).startswith(f"m.gguf: {message}")


TENSORS = {
    "missing": ({"tensors": {"blk.1.ffn_up.weight": None}}, "tensor 'blk.1.ffn_up.weight' is missing"),
    "shape": (
        {"tensors": {"blk.0.attn_k.weight": (36, 36)}},
        "tensor 'blk.0.attn_k.weight' has shape [36, 36]; expected [12, 36]",
    ),
    "leftover": (
        {"tensors": {"blk.0.ffn_gate_inp.weight": (8, 36)}},
        "tensor 'blk.0.ffn_gate_inp.weight' is not part of a llama model",
    ),
    "factors-of-another-format": (
        {"factors": replace(vector(1.0, 2.0), format="bf16")},
        "tensor 'rope_freqs.weight' is bf16 of shape [2]; expected an fp32 vector",
    ),
    "too-many-factors": ({"factors": vector(1, 2, 3)}, "rope_scaling has 3 factors; head_dim 4 needs 2"),
}


@pytest.mark.parametrize(("changes", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ArtifactError) as refusal:
        adapt(source(**changes))
    assert str(refusal.value) == f"m.gguf: {message}"


def test_factors_beside_linear_scaling_are_refused():
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    with pytest.raises(ArtifactError, match=r"rope_freqs.weight together with linear rope scaling"):
        adapt(source(changes, factors=vector(1.0, 8.0)))
