"""Qwen3.5 checkpoints through the whole engine: the greedy tokens of transformers, alone, in a batch and drafted.

Folders saved by transformers are served with ``--reference-ops --kv-dtype fp32``, and on the fast routes, which must
not show either.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer_core.api import Draft, DraftRequest, RawJob, Refusal, SamplingRequest, SpeculativeBackend, hookimpl
from ninfer_core.engine.engine import LocalEngine

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share their oracles

import qwen35_oracle as oracle
import serving_oracle as serving
from serving_oracle import GREEDY, answers

PLUGINS = {"qwen35", "llama", "kv_bf16"}
NEW = 20
LENGTHS = (1, 2, 63, 64, 65, 130, 300, 700)
PUBLIC = serving.BYTES + len(oracle.CONTROL)  # ids from here on are padding rows of the tables
EXACT = ("--reference-ops", "--kv-dtype", "fp32", "--max-context", "1024", "--prefill-chunk", "128")
FAST = EXACT[1:]
# layers of both kinds; more of them cost time and show nothing new
KINDS = {"dense": {**oracle.DENSE, "num_hidden_layers": 4}, "moe": oracle.MOE}


def save_tokenizer(directory: Path) -> None:
    serving.save_tokenizer(directory, oracle.CONTROL)
    (directory / "generation_config.json").write_text('{"eos_token_id": [258, 256], "pad_token_id": 256}')


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    directory = tmp_path_factory.mktemp(request.param)
    model = oracle.build(KINDS[request.param])
    oracle.save(model, directory)
    save_tokenizer(directory)
    return model, directory


@pytest.fixture(scope="module")
def wanted(case) -> list[tuple[int, ...]]:
    """What transformers answers to ``prompts``."""
    return [serving.greedy(case[0], ids, NEW, PUBLIC) for ids in prompts()]


def serve(model: str | Path, *flags: str, modules: Sequence[tuple[str, Any]] = ()) -> LocalEngine:
    return serving.serve(PLUGINS, model, *flags, modules=modules)


def job(ids: Sequence[int]) -> RawJob:
    return serving.job(ids, NEW)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.mark.parametrize("lanes", ["1", "8"])
def test_greedy_tokens_equal_transformers_alone_and_in_a_batch_of_eight(case, wanted, lanes):
    assert max(token for tokens in wanted for token in tokens) < PUBLIC
    got = answers(serve(case[1], *EXACT, "--max-concurrency", lanes), [job(ids) for ids in prompts()])
    assert [result.token_ids for result in got] == wanted


def test_greedy_tokens_of_the_fast_routes_equal_transformers(case, wanted):
    folder = case[1]
    fast = ("--kv-dtype", "fp32", "--max-context", "1024", "--max-concurrency", "8")
    got = answers(serve(str(folder), *fast), [job(ids) for ids in prompts()])
    assert [result.token_ids for result in got] == wanted


class Foreseen:
    """Proposes what will be said, right for a while and then wrong."""

    max_drafts = 6

    def __init__(self, answers: Sequence[tuple[list[int], tuple[int, ...]]]) -> None:
        self.answers = answers

    def begin(self, request: DraftRequest) -> object:
        prompt = list(request.prompt_ids)
        # the warm-up's prompt is nobody's
        return len(prompt), next((answer for ids, answer in self.answers if ids == prompt), ())

    def propose(self, handle: Any, ledger: Sequence[int], maximum: int) -> Draft | None:
        start, answer = handle
        said = len(ledger) - start
        tokens = list(answer[said : said + min(maximum, 1 + said % 6)])
        if tokens and said % 3:
            tokens[-1] = (tokens[-1] + 1) % PUBLIC
        return Draft(tokens=tuple(tokens)) if tokens else None

    def observe(self, handle: object, draft: Draft, accepted: int) -> None:
        pass

    def finish(self, handle: object) -> None:
        pass


@pytest.mark.parametrize("route", [EXACT, FAST], ids=["reference", "fast"])
def test_drafts_that_are_partly_wrong_change_no_token(case, wanted, route):
    source = Foreseen(list(zip(prompts(), wanted, strict=True)))
    backend = SpeculativeBackend(name="foreseen", summary="knows", role="copy", open=lambda context: source)
    module: Any = types.ModuleType("foreseen")
    module.NINFER_API = 1
    module.ninfer_speculative_backends = hookimpl(lambda: [backend], specname="ninfer_speculative_backends")
    engine = serve(
        str(case[1]), *route, "--spec", "foreseen", "--max-concurrency", "4", modules=(("foreseen", module),)
    )
    got = answers(engine, [job(ids) for ids in prompts()])
    assert [result.token_ids for result in got] == wanted
    drafted, accepted = (sum(getattr(r.timings, n) for r in got) for n in ("draft_n", "draft_n_accepted"))
    assert 0 < accepted < drafted


def test_padding_rows_of_the_vocabulary_are_never_sampled(case, tmp_path):
    """A head whose padding rows outshine all others."""
    from safetensors.torch import load_file, save_file

    _, folder = case
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"][PUBLIC:] *= 100
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hot = SamplingRequest(temperature=1.5, seed=3, top_k=0, top_p=1.0)
    jobs = [
        RawJob(prompt=((1, 2, n),), max_tokens=16, sampling=s, ignore_eos=True) for n in range(3) for s in (GREEDY, hot)
    ]
    for result in answers(serve(str(tmp_path), *EXACT, "--max-concurrency", "4"), jobs):
        assert max(result.token_ids) < PUBLIC


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rope-scaling-factor", "2", "--rope-yarn"), "--rope-scaling-factor 2 excludes --rope-yarn"),
        (("--rope-scaling-factor", "2", "--rope-yarn-factor", "3"), "excludes --rope-yarn-factor"),
        (("--rope-scaling-original-context", "100"), "no effect without --rope-scaling-factor"),
        (("--max-context", "8193"), "--max-context 8193 exceeds 8192 tokens"),
    ],
    ids=["linear and yarn", "linear and yarn factor", "threshold alone", "beyond four windows"],
)
def test_what_cannot_work_is_refused_in_one_line(case, flags, message):
    with pytest.raises(Refusal, match=message):
        serve(str(case[1]), *flags)


@pytest.mark.parametrize(
    "mode", [(), ("--rope-yarn",), ("--rope-scaling-factor", "4")], ids=["plain", "yarn", "linear"]
)
def test_a_context_beyond_the_trained_one_is_served_up_to_four_times(case, mode):
    engine = serve(str(case[1]), "--max-context", "8192", *mode)
    assert engine.info.max_context == 8192
    assert engine.info.trained_context == 2048


def test_an_option_of_this_family_is_refused_for_another_familys_model(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(Refusal, match="--gdn-state-fp16 has no effect on a llama model; it is read by qwen35"):
        serve(str(tmp_path), "--gdn-state-fp16")


def test_a_half_precision_state_serves(case):
    engine = serve(str(case[1]), *EXACT, "--gdn-state-fp16")
    [result] = answers(engine, [job(prompts()[3])])
    assert len(result.token_ids) == NEW
