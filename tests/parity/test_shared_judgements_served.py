"""Judgements of real layers, recurrent and not: what they share changes no score, whoever comes first and whether or
not it is held.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer_core.api import ChatJob, Message, Part, Score

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share their oracles

import qwen35_oracle as oracle
import serving_oracle as serving

pytestmark = pytest.mark.contract("rerank.prefix")
KINDS = {"dense": {**oracle.DENSE, "num_hidden_layers": 4}, "moe": oracle.MOE, "llama": None}
SHARED = "Which of these texts says what a panda eats, and where it does so? " * 3  # 201 bytes, a token each
DOCUMENTS = ["Bamboo.", "Paris is in France. " * 9, "", "A bear of China eats bamboo, " * 4, "no"]
TOKENS = (ord("y"), ord("n"))
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
TOLERANCE = 2e-4


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    if KINDS[request.param] is not None:
        oracle.save(oracle.build(KINDS[request.param]), directory)
        serving.save_tokenizer(directory, oracle.CONTROL)
    else:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(2)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).save_pretrained(directory)
        serving.save_tokenizer(directory)
    (directory / "plain.jinja").write_text(PLAIN)
    return directory


def judged(folder: Path, documents: Sequence[str], *flags: str, spare: bool = True) -> tuple[list[Score], Any]:
    """A call's scores, and the figures it left."""
    engine = serving.serve(
        {"qwen35", "llama", "kv_bf16"},
        folder,
        *("--reference-ops", "--kv-dtype", "fp32", "--max-context", "1024", "--threads", "1"),
        *("--chat-template", str(folder / "plain.jinja")),
        *flags,
    )
    if not spare:
        engine.worker.lanes.prefixes.hold = lambda *_: False  # type: ignore[method-assign]
    jobs = [ChatJob(messages=(Message(role="user", content=(Part(text=SHARED + d + "?"),)),)) for d in documents]

    async def work() -> list[Score]:
        engine.start(asyncio.get_running_loop())
        scores = await engine.score(jobs, TOKENS)
        engine.stop()
        return scores

    scores = asyncio.run(asyncio.wait_for(work(), 120))
    assert engine.join(30)
    assert engine.worker.lanes.pool.available == engine.worker.lanes.pool.total
    engine.worker.lanes.check()
    return scores, engine.worker.snapshot.counters


def test_a_score_is_the_unshared_one_and_depends_on_no_order(folder):
    scores, counters = judged(folder, DOCUMENTS)
    assert [score.cached_tokens for score in scores] == [0, *[192] * (len(DOCUMENTS) - 1)]
    assert counters.reused_prompt_tokens == 192 * (len(DOCUMENTS) - 1)
    bits = {text: score.logprobs for text, score in zip(DOCUMENTS, scores, strict=True)}
    assert len(set(bits.values())) == len(DOCUMENTS), "the documents matter"
    beside = ("--max-concurrency", "3", "--concurrent-prefill")
    for order, flags in ((DOCUMENTS[::-1], ()), (DOCUMENTS[2:] + DOCUMENTS[:2], beside)):
        again, _ = judged(folder, order, *flags)
        assert {text: score.logprobs for text, score in zip(order, again, strict=True)} == bits
    unheld, counters = judged(folder, DOCUMENTS, spare=False)
    assert counters.reused_prompt_tokens == 0
    assert [score.logprobs for score in unheld] == list(bits.values()), "held or not, computed alike"
    for text in DOCUMENTS[:3]:
        (alone,), _ = judged(folder, [text])
        assert alone.logprobs == pytest.approx(bits[text], abs=TOLERANCE)
