"""Tiny models through the whole engine, and the greedy tokens of transformers beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ninfer_core.api import RawJob, Result, SamplingRequest
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.progress import Silent
from ninfer_core.options import parse
from ninfer_core.testing import compose

# a family's preset may have a presence penalty
GREEDY = SamplingRequest(temperature=0.0, presence_penalty=0.0, seed=1)
BYTES = 256


def save_tokenizer(directory: Path, control: Sequence[str] = ()) -> None:
    """Bytes, and the control tokens after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    tokenizer.save(str(directory / "tokenizer.json"))


def serve(
    only: Collection[str], model: str | Path, *flags: str, modules: Sequence[tuple[str, Any]] = ()
) -> LocalEngine:
    """The engine of ``ninfer-serve MODEL FLAGS`` with these plugins."""
    plugins = compose(only, modules=modules)
    _, values = parse([str(model), *flags], plugins, "serve")
    return load_engine(str(model), values, plugins, Silent())


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


def job(ids: Sequence[int], count: int) -> RawJob:
    return RawJob(prompt=(tuple(ids),), max_tokens=count, sampling=GREEDY, ignore_eos=True)


def generated(model: Any, prompts: Sequence[Sequence[int]], count: int, public: int) -> Any:
    """transformers' ``generate`` over prompts of one length; tokens from ``public`` on are never sampled."""
    ids = torch.tensor([list(prompt) for prompt in prompts])
    padding = list(range(public, model.config.get_text_config().vocab_size))
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=padding or None,
        return_dict_in_generate=True,
        output_logits=True,
    )


def greedy(model: Any, ids: Sequence[int], count: int, public: int) -> tuple[int, ...]:
    """What transformers answers to one prompt."""
    return tuple(generated(model, [ids], count, public).sequences[0, len(ids) :].tolist())


def clear_answers(
    model: Any, prompts: Sequence[Sequence[int]], count: int, public: int, margin: float
) -> list[tuple[Sequence[int], tuple[int, ...]]]:
    """The prompts, of one length, whose every answered token leads by more than ``margin``, with their answers."""
    out = generated(model, prompts, count, public)
    best: Tensor = torch.stack(out.logits)[..., :public].topk(2, dim=-1).values  # [count, prompts, 2]
    leads = (best[..., 0] - best[..., 1]).amin(0)
    said = out.sequences[:, len(prompts[0]) :].tolist()
    return [
        (prompt, tuple(tokens))
        for prompt, tokens, lead in zip(prompts, said, leads.tolist(), strict=True)
        if lead > margin
    ]
