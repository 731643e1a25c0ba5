"""Qwen3.5 checkpoints through the whole engine: the greedy tokens of transformers, alone, in a batch and drafted.

Folders saved by transformers are served with ``--reference-ops --kv-dtype fp32``, and on the fast routes, which must
not show either.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ninfer_core.api import (
    Draft,
    DraftRequest,
    RawJob,
    Refusal,
    Result,
    SamplingRequest,
    SpeculativeBackend,
    hookimpl,
)
from ninfer_core.cli.main import main as ninfer
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.progress import Silent
from ninfer_core.options import parse
from ninfer_core.testing import compose

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `qwen35_oracle`

import qwen35_oracle as oracle

PLUGINS = {"qwen35", "llama", "kv_bf16"}
# the family's preset has a presence penalty
GREEDY = SamplingRequest(temperature=0.0, presence_penalty=0.0, seed=1)
NEW = 20
LENGTHS = (1, 2, 63, 64, 65, 130, 300, 700)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
PUBLIC = 256 + len(CONTROL)
EXACT = ("--reference-ops", "--kv-dtype", "fp32", "--max-context", "1024", "--prefill-chunk", "128")
FAST = EXACT[1:]
KINDS = {"dense": oracle.DENSE, "moe": oracle.MOE}


def save_tokenizer(directory: Path) -> None:
    """Bytes, and the control tokens after them; ids from ``PUBLIC`` on are padding rows of the tables."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.save(str(directory / "tokenizer.json"))
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
    return [expected(case[0], ids) for ids in prompts()]


def expected(model: Any, ids: Sequence[int], count: int = NEW) -> tuple[int, ...]:
    out = model.generate(
        input_ids=torch.tensor([list(ids)]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=list(range(PUBLIC, oracle.VOCAB)),
    )
    return tuple(out[0, len(ids) :].tolist())


def serve(model: str, *flags: str, modules: Sequence[tuple[str, Any]] = ()) -> LocalEngine:
    plugins = compose(PLUGINS, modules=modules)
    _, values = parse([model, *flags], plugins, "serve")
    return load_engine(model, values, plugins, Silent())


def answers(engine: LocalEngine, jobs: Sequence[RawJob]) -> list[Result]:
    """All jobs at once."""

    async def one(job: RawJob) -> Result:
        async with await engine.complete(job) as generation:
            return await generation.result()

    async def everything() -> list[Result]:
        engine.start(asyncio.get_running_loop())
        results = await asyncio.gather(*map(one, jobs))
        engine.stop()
        return results

    results = asyncio.run(everything())
    assert engine.join(30)
    return results


def job(ids: Sequence[int]) -> RawJob:
    return RawJob(prompt=(tuple(ids),), max_tokens=NEW, sampling=GREEDY, ignore_eos=True)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def test_greedy_tokens_equal_transformers_alone_and_in_a_batch_of_eight(case, wanted, tmp_path):
    folder = case[1]
    assert max(token for tokens in wanted for token in tokens) < PUBLIC
    artifact = tmp_path / "model.ninfer"
    assert ninfer(["convert", str(folder), str(artifact)]) == 0
    for source, lanes in ((folder, "1"), (folder, "8"), (artifact, "8")):
        got = answers(serve(str(source), *EXACT, "--max-concurrency", lanes), [job(ids) for ids in prompts()])
        assert [result.token_ids for result in got] == wanted, (source, lanes)


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
