"""Greedy tokens of small fp32 models: a GPU's kernels say what the definition says on the CPU, and say it again."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from sides import Side, runtime

from ninfer_core.testing import compose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CPU = torch.device("cpu")
ROWS, GENERATED = 3, 48
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "vocab_size": 331,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "attention_bias": False,
    "mlp_bias": False,
}
QWEN35 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 331,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "intermediate_size": 96,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "rms_norm_eps": 1e-6,
}
MOE = {
    **{key: value for key, value in QWEN35.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
CASES: list[tuple[str, dict[str, Any]]] = [("llama", LLAMA), ("qwen35", QWEN35), ("qwen35", MOE)]


def said(name: str, config: dict[str, Any], device: torch.device, *, reference: bool) -> list[list[int]]:
    """The greedy continuations of prompts of unequal length, the rows of a round together."""
    family = compose({name}).model_families[name]
    made = runtime(CPU, torch.float32, reference=False)
    side = Side(
        family,
        config,
        runtime(device, torch.float32, reference=reference),
        source=made,
        storage="fp32",
        rows=ROWS,
    )
    rng = random.Random(7)
    last = []
    for row, length in enumerate((5, 70, 131)):
        prompt = [rng.randrange(config["vocab_size"]) for _ in range(length)]
        last += side.feed([prompt], wanted="last", first=row).logits.argmax(-1).tolist()
    out = [[token] for token in last]
    for _ in range(GENERATED):
        logits = side.feed([[tokens[-1]] for tokens in out], wanted="all", provisional=True).logits
        side.keep([1] * ROWS)
        for tokens, token in zip(out, logits.argmax(-1).tolist(), strict=True):
            tokens.append(token)
    return out


@pytest.mark.parametrize(("name", "config"), CASES, ids=["llama", "qwen35", "qwen35-moe"])
@torch.inference_mode()
def test_a_gpu_says_what_the_definition_says_on_the_cpu(name, config):
    gpu = torch.device("cuda", 0)
    first, again = (said(name, config, gpu, reference=False) for _ in range(2))
    assert first == again
    assert first == said(name, config, CPU, reference=True)
