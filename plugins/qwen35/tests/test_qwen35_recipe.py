"""What artifacts of this family look like: formats per scheme, and the inputs of every matrix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_qwen35`

from test_qwen35_config import DENSE_27B, MOE_35B, artifact, published
from test_qwen35_gguf import checkpoint, logits_of, opened

from ninfer_qwen35 import QWEN35, family

DENSE, MOE = published(DENSE_27B), published(MOE_35B)
LAYER, FULL = "text/layers/0/", "text/layers/3/"
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
FP8, NVFP4 = "fp8_e4m3fn_row_bf16", "nvfp4"

# spec/artifact.md §15.1 and §15.2
FORMATS = [
    (DENSE, "groupwise-int", FULL + "attention/query", Q4),
    (DENSE, "groupwise-int", FULL + "attention/gate", Q5),
    (DENSE, "groupwise-int", FULL + "attention/value", Q5),
    (DENSE, "groupwise-int", FULL + "attention/output", Q5),
    (DENSE, "groupwise-int", LAYER + "gdn/key", Q4),
    (DENSE, "groupwise-int", LAYER + "gdn/z", Q5),
    (DENSE, "groupwise-int", LAYER + "gdn/a_projection", "bf16"),
    (DENSE, "groupwise-int", LAYER + "mlp/up", Q4),
    (DENSE, "groupwise-int", LAYER + "mlp/down", Q5),
    (DENSE, "groupwise-int", "text/token_embedding", Q8),
    (DENSE, "groupwise-int", "text/output_head", Q8),
    (DENSE, "groupwise-int", "mtp/input_projection", Q8),
    (DENSE, "groupwise-int", "mtp/layers/0/mlp/down", Q8),
    (MOE, "groupwise-int", FULL + "attention/query", Q8),
    (MOE, "groupwise-int", "text/output_head", Q6),
    (MOE, "groupwise-int", LAYER + "moe/experts/255/gate", Q4),
    (MOE, "groupwise-int", LAYER + "moe/experts/0/down", Q5),
    (MOE, "groupwise-int", "text/layers/38/moe/experts/7/down", Q6),
    (MOE, "groupwise-int", LAYER + "moe/shared/down", Q8),
    (MOE, "groupwise-int", LAYER + "moe/router", "bf16"),
    (MOE, "groupwise-int", "mtp/layers/0/moe/experts/3/up", Q8),
    (DENSE, "nvfp4", "text/layers/55/mlp/gate", NVFP4),
    (DENSE, "nvfp4", "text/layers/56/mlp/gate", FP8),
    (DENSE, "nvfp4", LAYER + "gdn/output", FP8),
    (DENSE, "nvfp4", "text/output_head", FP8),
    (MOE, "nvfp4", "text/layers/39/moe/experts/9/down", NVFP4),
    (MOE, "nvfp4", LAYER + "moe/shared/gate", NVFP4),
    (MOE, "nvfp4", LAYER + "gdn/output", Q8),
    (MOE, "nvfp4", LAYER + "moe/shared_score", "bf16"),
    (DENSE, "fp8", LAYER + "gdn/value", FP8),
    (DENSE, "bf16", LAYER + "gdn/value", "bf16"),
]


@pytest.mark.parametrize(
    ("config", "scheme", "name", "form"), FORMATS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_scheme_stores_what_the_official_recipe_says(config, scheme, name, form):
    assert family.weight_recipe(config, scheme)[name] == form


@pytest.mark.parametrize("scheme", ["fp8", "groupwise-int", "nvfp4"])
@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_a_tied_head_is_stored_as_the_table_it_is(config, scheme):
    recipe = family.weight_recipe({**config, "tie_word_embeddings": True}, scheme)
    assert recipe["text/output_head"] == recipe["text/token_embedding"]


@pytest.mark.parametrize("scheme", ["bf16", "fp8", "groupwise-int", "nvfp4"])
def test_vectors_and_the_convolution_stay_as_they_are(scheme):
    recipe = family.weight_recipe(MOE, scheme)
    assert not [name for name in recipe if name.endswith(("norm", "a_log", "dt_bias", "convolution"))]
    assert family.direct_formats(MOE)[LAYER + "gdn/a_log"] == "fp32"


def test_matrices_too_small_for_tiles_take_row_fp8():
    assert family.weight_recipe(artifact(), "nvfp4")[LAYER + "mlp/gate"] == FP8


INPUTS = {
    "text/output_head": "text/final_hidden",
    FULL + "attention/gate": FULL + "mixer_input",
    FULL + "attention/output": FULL + "attention/gated_output",
    LAYER + "gdn/b_projection": LAYER + "mixer_input",
    LAYER + "gdn/output": LAYER + "gdn/gated_output",
    LAYER + "moe/router": LAYER + "ffn_input",
    LAYER + "moe/experts/3/up": LAYER + "ffn_input",
    LAYER + "moe/experts/3/down": LAYER + "moe/experts/3/product",
    LAYER + "moe/shared/down": LAYER + "moe/shared/product",
    "mtp/input_projection": "mtp/stem_input",
    "mtp/layers/0/attention/output": "mtp/layers/0/attention/gated_output",
}


def test_every_matrix_names_its_input():
    found = family.uses(MOE)
    assert {name: found[name] for name in INPUTS} == {name: (entry,) for name, entry in INPUTS.items()}
    assert family.uses(DENSE)[LAYER + "mlp/down"] == (LAYER + "mlp/product",)
    matrices = set(family.weight_recipe(MOE, "fp8")) - {"text/token_embedding"}
    assert set(found) == matrices


@pytest.mark.parametrize("scheme", ["keep", "fp32"])
def test_a_file_with_packed_and_moved_columns_converts_and_says_the_same(tmp_path, scheme):
    """The order of an output's columns travels with it, or is undone where the matrix is stored anew."""
    file = opened(checkpoint(packed=frozenset(("ssm_out.weight", "attn_qkv.weight")))[2])
    stored = file.convert(tmp_path / "model.ninfer", scheme)
    assert stored.family is QWEN35
    assert set(stored.checkpoint.companions) == {"mtp"}
    assert stored.uses_of("text/output_head") == {"text/final_hidden", "mtp/final_hidden"}
    torch.testing.assert_close(logits_of(stored), logits_of(file), rtol=0, atol=1e-5)
