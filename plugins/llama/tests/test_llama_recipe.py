"""What ``ninfer convert --weights SCHEME`` makes of a llama model."""

import pytest

from ninfer_llama import ninfer_model_families

(LLAMA,) = ninfer_model_families()
CONFIG = {
    "hidden_size": 576,
    "vocab_size": 1000,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "rope_theta": 1e4,
    "attention_bias": True,
    "mlp_bias": False,
}
P = "text/layers/0/"
TABLES = ("text/token_embedding", "text/output_head")


@pytest.mark.parametrize("scheme", ["bf16", "fp8", "groupwise-int", "nvfp4"])
def test_every_matrix_has_a_format_and_nothing_else_has_one(scheme):
    recipe = LLAMA.weight_recipe(CONFIG, scheme)
    inventory = LLAMA.inventory(CONFIG)
    assert set(recipe) == {name for name, shape in inventory.items() if len(shape) == 2}
    assert f"{P}attention/query_bias" in inventory


def test_groupwise_gives_more_bits_to_what_enters_the_residual():
    recipe = LLAMA.weight_recipe(CONFIG, "groupwise-int")
    assert {recipe[name] for name in TABLES} == {"q8_g32_fp16"}
    wide, narrow = ("attention/value", "attention/output", "mlp/down"), ("attention/query", "attention/key", "mlp/up")
    assert {recipe[P + name] for name in wide} == {"q5_g64_fp16"}
    assert {recipe[P + name] for name in narrow} == {"q4_g64_fp16"}


def test_nvfp4_falls_back_to_row_fp8_where_its_tiles_do_not_fit():
    recipe = LLAMA.weight_recipe(CONFIG, "nvfp4")
    assert recipe[f"{P}mlp/gate"] == "nvfp4"
    # 576 and 192 rows are no multiple of 128
    small = [recipe[P + name] for name in ("attention/query", "attention/key", "mlp/down")]
    assert {*small, *(recipe[name] for name in TABLES)} == {"fp8_e4m3fn_row_bf16"}
