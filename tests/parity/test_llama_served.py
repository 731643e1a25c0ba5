"""Llama checkpoints through the whole engine: the greedy tokens of transformers, from every form of one model.

A folder saved by transformers and the artifact converted from it are served with ``--reference-ops --kv-dtype fp32``;
the demo model runs on its fast routes too, alone, in a batch and with copy drafting, which must not show.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ninfer_core.api import RawJob, SamplingRequest
from ninfer_core.cli.main import main as ninfer
from ninfer_core.demo import demo_model
from ninfer_core.engine.engine import LocalEngine

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `serving_oracle`

import serving_oracle as serving
from serving_oracle import answers

PLUGINS = {"llama", "gguf", "kv_bf16", "kv_int8", "spec_ngram"}
NEW = 64
SHAPES: dict[str, dict[str, Any]] = {
    "grouped-tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi-head-untied": {"num_key_value_heads": 4},
}


def save_checkpoint(directory: Path, changes: dict[str, Any]) -> LlamaForCausalLM:
    """A random model and a byte-level tokenizer, as transformers leaves them on disk."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=serving.BYTES,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **changes,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    serving.save_tokenizer(directory)
    return model


def serve(model: str | Path, *flags: str) -> LocalEngine:
    return serving.serve(PLUGINS, model, *flags)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_tokens_equal_transformers_from_folder_and_artifact(tmp_path, shape):
    folder = tmp_path / "hf"
    model = save_checkpoint(folder, SHAPES[shape])
    artifact = tmp_path / "model.ninfer"
    assert ninfer(["convert", str(folder), str(artifact)]) == 0
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in (1, 63, 130, 700)]
    wanted = [serving.greedy(model, prompt, NEW, serving.BYTES) for prompt in prompts]
    jobs = [serving.job(prompt, NEW) for prompt in prompts]
    reference = ("--reference-ops", "--kv-dtype", "fp32", "--max-context", "1024", "--prefill-chunk", "128")
    for source in (folder, artifact):
        for lanes in ("1", "4"):
            got = answers(serve(source, *reference, "--max-concurrency", lanes), jobs)
            assert [result.token_ids for result in got] == wanted, (source, lanes)


@pytest.fixture(scope="module")
def demo_jobs():
    prompts = [
        "The capital of France is",
        "def add(a, b):\n    return a + b\n\n\ndef add(a, b):\n    return",
        "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3,",
        "Once upon a time",
        "Water boils at",
        "The quick brown fox jumps over the lazy dog. The quick brown fox",
        "A",
        "Shopping list:\n- milk\n- eggs\n- milk\n- eggs\n-",
    ]
    sampled = [SamplingRequest(temperature=0.7 * (i % 2), seed=i) for i in range(len(prompts))]
    return [
        RawJob(prompt=(p,), max_tokens=32, sampling=s, ignore_eos=True) for p, s in zip(prompts, sampled, strict=True)
    ]


@pytest.fixture(scope="module")
def solo(demo_jobs):
    return [r.token_ids for r in answers(serve(demo_model()), demo_jobs)]  # one lane: one after the other


def test_eight_streams_of_the_demo_model_equal_their_solo_runs(demo_jobs, solo):
    together = answers(serve(demo_model(), "--max-concurrency", "8"), demo_jobs)
    assert [result.token_ids for result in together] == solo


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_copy_drafting_changes_no_token_of_the_demo_model(demo_jobs, solo, lanes):
    flags = ("--spec", "ngram", "--ngram-min-match", "4", "--max-concurrency", lanes)
    drafted = answers(serve(demo_model(), *flags), demo_jobs)
    assert [result.token_ids for result in drafted] == solo
    assert sum(result.timings.draft_n_accepted for result in drafted) > 20
