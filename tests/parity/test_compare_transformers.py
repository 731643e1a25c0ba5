"""``bench/compare_transformers.py``: the model it times is the geometry's, and its steps are a continuation."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from ninfer_core.cli.rows import row
from ninfer_llama import LLAMA
from ninfer_qwen35 import QWEN35

PATH = Path(__file__).parents[2] / "bench" / "compare_transformers.py"
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 48,
}
GDN = {
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
CPU = torch.device("cpu")


def small(family, geometry: str) -> dict:
    """A geometry at a size that is quick to make."""
    found = {**family.geometries[geometry](4), **SMALL, **(GDN if family is QWEN35 else {})}
    if geometry == "35b-a3b":
        del found["intermediate_size"]
        found |= EXPERTS
    return found


CASES = [(LLAMA, "llama-8b"), (QWEN35, "27b"), (QWEN35, "4b"), (QWEN35, "35b-a3b")]


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare_transformers", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("family", "geometry"), CASES, ids=[geometry for _, geometry in CASES])
@torch.inference_mode()
def test_the_model_has_the_parameters_of_the_geometry(compare, family, geometry):
    config = small(family, geometry)
    inventory = dict(family.inventory(config))
    if config["tie_word_embeddings"]:
        del inventory["text/output_head"]
    model = compare.build(config, CPU)
    assert sum(one.numel() for one in model.parameters()) == sum(map(math.prod, inventory.values()))


@torch.inference_mode()
def test_a_step_goes_on_where_the_cache_ends(compare):
    model = compare.build(small(LLAMA, "llama-8b"), CPU)
    batch = compare.Batch(model, 2, 9)
    said = [batch.last]
    for _ in range(3):
        batch.step()
        said.append(batch.last)
    whole = torch.cat([batch.prompt, *said], dim=1)
    expected = model(whole[:, :-1]).logits[:, 8:].argmax(-1)
    assert torch.equal(torch.cat(said, dim=1), expected)
    assert len(compare.decode_ms(model, 2, 5, 4)) == 4


def test_rows_are_told_beside_those_of_the_same_shape(compare, capsys):
    ours = [row("prefill", "R1-P64-D64", "ninfer", [2.0]), row("decode_round", "R1-W1-C70", "graph", [1.0])]
    theirs = [row("decode_round", "R1-W1-C70", "transformers", [5.0]), row("prefill", "R1-P9", "transformers", [5.0])]
    theirs.append(row("prefill", "R1-P64", "transformers", [5.0]))
    compare.report(ours, theirs)
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in told] == [["decode_round", "R1-W1-C70"], ["prefill", "R1-P64"]]
    assert "5.00 times" in told[0]
    assert "2.50 times" in told[1]
