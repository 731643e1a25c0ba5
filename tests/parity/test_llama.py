"""The llama family against transformers on tiny random checkpoints: fp32 weights, activations, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from ninfer_core.api.nn import Runtime
from ninfer_core.demo import demo_model
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.testing import compose
from ninfer_core.testing.rig import Rig
from ninfer_core.weights.checkpoint import open_checkpoint

TOLERANCE = 1e-4
BASE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "grouped-query": {},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "attention-bias-only": {"attention_bias": True},
    "wide-heads": {"head_dim": 20},
    "llama3-rope": {"rope_parameters": LLAMA3},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}},
    "other-eps-and-theta": {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "one-layer": {"num_hidden_layers": 1},
}


def oracle(directory: Path, changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A random model, saved to ``directory``; biases and norms are random too, so that each of them matters."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**{**BASE, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (0.0 if name.endswith("bias") else 1.0))
    model.to(dtype).save_pretrained(directory)
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def load(path: Path | str, *, reference: bool = True, plugins: tuple[str, ...] = ("llama",)) -> Rig:
    composed = compose(set(plugins))
    family, checkpoint = open_checkpoint(str(path), composed)
    runtime = Runtime(device=torch.device("cpu"), dtype=torch.float32, reference=reference, max_context=512, options={})
    weights = CheckpointWeights(checkpoint, composed.weight_formats, runtime)
    return Rig(family.build(checkpoint, weights, runtime), family.kv_geometry(checkpoint.config))


@pytest.fixture(scope="module", params=CONFIGS, ids=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    directory = tmp_path_factory.mktemp("llama")
    yield oracle(directory, CONFIGS[request.param]), directory


def prompt(count: int, seed: int = 3) -> list[int]:
    return torch.randint(0, BASE["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


def greedy(rig: Rig, ids: list[int], count: int) -> list[int]:
    out = [int(rig.feed({0: ids}, wanted="last")[0].argmax())]
    while len(out) < count:
        out.append(int(rig.feed({0: out[-1:]})[0].argmax()))
    return out


@torch.no_grad()
def greedy_oracle(model: Any, ids: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "fast"])
def test_logits_equal_transformers_whole_chunked_and_token_by_token(case, reference):
    model, directory = case
    ids = prompt(100)
    expected = expected_logits(model, ids)
    assert expected.abs().max() > 1, "a flat model would pass whatever we compute"
    rig = load(directory, reference=reference)
    whole = rig.feed({0: ids})[0]
    chunked = torch.cat([rig.feed({1: ids[a:b]})[1] for a, b in ((0, 1), (1, 63), (63, 66), (66, 100))])
    single = torch.cat([rig.feed({2: [token]})[2] for token in ids])
    for got in (whole, chunked, single):
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


def test_greedy_tokens_equal_transformers(case):
    model, directory = case
    ids = prompt(17, seed=5)
    assert greedy(load(directory), ids, 64) == greedy_oracle(model, ids, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_checkpoints_are_read_exactly(tmp_path, dtype):
    model = oracle(tmp_path, {"tie_word_embeddings": True}, dtype)
    ids = prompt(20)
    got = load(tmp_path).feed({0: ids})[0]
    torch.testing.assert_close(got, expected_logits(model, ids), rtol=0, atol=TOLERANCE)


def test_shards_and_older_config_spelling_read_the_same(tmp_path):
    model = oracle(tmp_path / "new", {"rope_parameters": LLAMA3})
    model.save_pretrained(tmp_path / "old", max_shard_size="40KB")
    assert len(list((tmp_path / "old").glob("*.safetensors"))) > 1
    config = tmp_path / "old" / "config.json"
    text = config.read_text()
    start = text.index('"rope_parameters"')
    old = (
        '"rope_theta": 10000.0, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, '
        '"high_freq_factor": 4.0, "original_max_position_embeddings": 64}'
    )
    config.write_text(text[:start] + old + text[text.index("}", start) + 1 :])
    ids = prompt(90)
    assert torch.equal(load(tmp_path / "old").feed({0: ids})[0], load(tmp_path / "new").feed({0: ids})[0])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from a second thread, and lose much where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# config.json of HuggingFaceTB/SmolLM2-135M-Instruct; the file's eps is its fp32 rounding
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}


# "What is the capital of France?" in the chat template
QUESTION = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def smollm2_oracle(path: str) -> LlamaForCausalLM:
    """transformers' own reading of the GGUF file, in fp32; ``from_pretrained`` would ask for accelerate on top."""
    config = LlamaConfig(**SMOLLM2)
    with torch.device("meta"):
        shape = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=shape)["tensors"]
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.float()


def test_smollm2_from_gguf_decodes_like_transformers():
    path = demo_model()
    rig = load(path, plugins=("llama", "gguf"))
    got = greedy(rig, QUESTION, 64)
    said = [*QUESTION, *got]
    expected = expected_logits(smollm2_oracle(path), said)
    # the greedy tokens of one pass over what was said: as long as they agree, a decode says the same
    assert got == expected[len(QUESTION) - 1 : -1].argmax(-1).tolist()
    torch.testing.assert_close(rig.feed({1: said})[1], expected, rtol=0, atol=TOLERANCE)


def test_smollm2_on_packed_weights_equals_the_reference():
    exact, packed = (load(demo_model(), reference=reference, plugins=("llama", "gguf")) for reference in (True, False))
    expected = exact.feed({0: QUESTION})[0]
    many = packed.feed({0: QUESTION})[0]
    few = torch.cat([packed.feed({1: QUESTION[:7]})[1], *(packed.feed({1: [token]})[1] for token in QUESTION[7:])])
    for got in (many, few):
        torch.testing.assert_close(got, expected, rtol=0, atol=10 * TOLERANCE)
