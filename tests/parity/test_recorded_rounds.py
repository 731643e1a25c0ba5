"""Recorded decode rounds against steps of the definition, for every family that says its steps can be recorded.

On a GPU the rounds are CUDA graphs. Without one the same code runs again at every replay, its kernels under the
interpreter: it sees the buffers of the round and the host's numbers of the recording, as a graph would.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ninfer_core.api.nn import Runtime
from ninfer_core.engine.graphs import NOBODY, DecodeGraphs, Recorded, RoundRow, Shape
from ninfer_core.kv.cache import KVCache
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.random import RandomWeights
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import Column, Drawn, sample
from ninfer_core.testing import compose
from ninfer_core.testing.rig import make_step
from ninfer_kernels.sampling import DECODE
from ninfer_llama.from_huggingface import read as from_huggingface

CPU = torch.device("cpu")
VOCAB, LANES, PAGES = 61, 4, 3
PUBLIC = 58  # of the vocabulary; the rest is padding of the matrix
TOLERANCE = {"fp32": 2e-4, "int8": 2e-2}  # a code that rounds the other way moves a value by 1/127 of its group
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 40,
    "max_position_embeddings": 512,
}
QWEN35 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "intermediate_size": 40,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [4, 2, 2]},
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 16,
    "rms_norm_eps": 1e-6,
}


MOE = {
    **{key: QWEN35[key] for key in QWEN35 if key != "intermediate_size" and not key.startswith("linear_")},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 16,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}


@dataclass(frozen=True)
class Family:
    name: str
    config: dict[str, Any]

    def model(self, weights: RandomWeights, runtime: Runtime) -> Any:
        if self.name == "llama":
            from ninfer_llama.config import read as read_llama
            from ninfer_llama.model import LlamaModel

            return LlamaModel(read_llama(self.config), weights, runtime)
        from ninfer_qwen35.config import read
        from ninfer_qwen35.model import Qwen35Model

        return Qwen35Model(read(self.config), weights, runtime)


FAMILIES = {
    "llama": Family("llama", from_huggingface(LLAMA, "config.json")[0]),
    "qwen35": Family("qwen35", QWEN35),
    "qwen35-moe": Family("qwen35", MOE),
}
CASES = [("llama", "fp32"), ("llama", "int8"), ("qwen35", "fp32"), ("qwen35", "int8"), ("qwen35-moe", "fp32")]


@dataclass
class Rerun:
    """In place of a CUDA graph."""

    run: Callable[[], None]

    def replay(self) -> None:
        with kernels(), no_host_reads():
            self.run()


class Kept(DecodeGraphs):
    """Rounds whose logits can be read afterwards."""

    draws = True

    def _feed(self, recorded: Recorded) -> Any:
        return super()._feed(recorded) if self.draws else None

    def _draw(self, recorded: Recorded, output: Any, spoken: Any) -> None:
        if self.draws:
            super()._draw(recorded, output, spoken)
        recorded.logits = output.logits  # type: ignore[attr-defined]


class Reruns(Kept):
    """In place of CUDA graphs: each replay runs its part of the step again."""

    def _record(self, recorded: Recorded) -> None:
        recorded.forward = Rerun(lambda: self._forward(recorded))
        recorded.fold = Rerun(lambda: self._fold(recorded))


@contextmanager
def kernels(device: torch.device = CPU) -> Iterator[None]:
    """Routes take the kernels on the CPU too."""
    if device.type != "cpu":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ninfer_kernels.device.launches", lambda x: True)
        yield


@contextmanager
def no_host_reads() -> Iterator[None]:
    """What a recording could not hold: numbers that come from the device to the host, or from the host to it."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a recorded step waits for the device or uploads")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "item", "__bool__", "__int__", "__index__", "nonzero"):
            patch.setattr(torch.Tensor, name, refused)
        for name in ("tensor", "as_tensor", "nonzero"):
            patch.setattr(torch, name, refused)
        yield


class Side:
    """One way to run the model: its weights, cache and states."""

    def __init__(
        self,
        family: str,
        storage: str,
        device: torch.device,
        *,
        reference: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        runtime = Runtime(device=device, dtype=dtype, reference=reference, max_context=PAGES * PAGE_TOKENS, options={})
        found = FAMILIES[family]
        plugins = compose({found.name, f"kv_{'bf16' if storage == 'fp32' else storage}"})
        described, config = plugins.model_families[found.name], found.config
        with kernels(device):  # as a GPU holds it: experts in stacks
            self.model = found.model(RandomWeights(runtime), runtime)
        self.cache = KVCache(
            described.kv_geometry(config), plugins.kv_dtypes[storage], LANES * PAGES + 1, device, reference
        )
        layout = described.state_layout(config, runtime) if described.state_layout else ()
        self.states = StatePool(layout, LANES, device)

    def forward(self, step: Any) -> Any:
        return self.model.forward(step, self.cache, self.states.parts)


def recorded_rounds(side: Side, device: torch.device) -> Kept:
    kind = Kept if device.type == "cuda" else Reruns
    return kind(
        side.model, side.cache, side.states, device,
        lanes=LANES, pages=PAGES, scratch_page=LANES * PAGES, public_tokens=PUBLIC,
    )  # fmt: skip


def moved(step: Any, device: torch.device) -> Any:
    names = ("token_ids", "positions", "page_table", "cache_slots", "logit_index")
    return replace(step, **{name: getattr(step, name).to(device) for name in names})


class Walk:
    """The same sequences on two sides: recorded rounds here, the definition step by step there."""

    def __init__(self, family: str, storage: str, device: torch.device, seed: int) -> None:
        self.rng, self.device, self.tolerance = random.Random(seed), device, TOLERANCE[storage]
        self.fast = Side(family, storage, device, reference=False)
        self.plain = Side(family, storage, device, reference=True)
        assert self.fast.model.records_steps
        self.graphs = recorded_rounds(self.fast, device)
        # the interpreter takes long for a draw, which is the same in every family
        self.graphs.draws = device.type == "cuda" or (family, storage) == CASES[0]
        pages = list(range(LANES * PAGES))
        self.rng.shuffle(pages)
        self.pages = [pages[lane * PAGES : (lane + 1) * PAGES] for lane in range(LANES)]
        self.slots = self.rng.sample(range(LANES), LANES)
        self.frontiers = [0] * LANES
        self.said: list[list[int]] = [[] for _ in range(LANES)]  # after prompts of any length
        self.params = [self.sampler(lane) for lane in range(LANES)]

    def sampler(self, lane: int) -> SamplingParams:
        penalties = {"presence_penalty": 1.5 * (lane % 2), "frequency_penalty": 0.3 * (lane == 3)}
        return SamplingParams(
            temperature=(0.0, 1.0, 0.7, 1.3)[lane], top_p=0.9, top_k=20, min_p=0.01, seed=self.rng.getrandbits(64),
            **penalties,
        )  # fmt: skip

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(PUBLIC) for _ in range(count)]

    def step(self, lanes: list[int], fed: list[list[int]], *, provisional: bool) -> Any:
        return moved(
            make_step(
                fed,
                frontiers=[self.frontiers[lane] for lane in lanes],
                pages=[self.pages[lane] for lane in lanes],
                slots=[self.slots[lane] for lane in lanes],
                provisional=provisional,
            ),
            self.device,
        )

    def prefill(self, lane: int, count: int) -> None:
        step = self.step([lane], [self.tokens(count)], provisional=False)
        self.close(self.fast.forward(step).logits, self.plain.forward(step).logits)
        self.frontiers[lane] += count

    def round(self, lanes: list[int], widths: list[int], kept: list[int], shape: Shape) -> None:
        fed = [self.tokens(width) for width in widths]
        recorded = self.graphs.choose(len(lanes), max(widths))
        assert recorded is not None and recorded.shape == shape
        own = [
            self.pages[lane][: (self.frontiers[lane] + len(new) - 1) // PAGE_TOKENS + 1]
            for lane, new in zip(lanes, fed, strict=True)
        ]
        rows = [
            RoundRow(
                tokens=new, frontier=self.frontiers[lane], state_slot=self.slots[lane], pages=pages,
                params=self.params[lane], logprobs=(None, 3)[lane % 2], lane=lane, request=lane, ledger=self.said[lane],
            )
            for lane, new, pages in zip(lanes, fed, own, strict=True)
        ]  # fmt: skip
        before = {name: part.clone() for name, part in self.fast.states.parts.items()}
        drawn = self.graphs.round(recorded, rows)
        got = recorded.logits.view(len(lanes), shape.width, -1)
        for row, tokens in enumerate(drawn if self.graphs.draws else ()):
            self.check_drawn(rows[row], tokens, got[row, : widths[row]])
        for name, part in self.fast.states.parts.items():
            assert torch.equal(part, before[name]), f"{name} moved before the fold"
        step = self.step(lanes, fed, provisional=True)
        expected = self.plain.forward(step)
        for row, logits in enumerate(expected.logits.split(widths)):
            self.close(got[row, : widths[row]], logits)
        self.graphs.fold(recorded, kept)
        self.plain.model.fold(step, expected.records, kept, self.plain.states.parts)
        for name, part in self.fast.states.parts.items():
            self.close(part, self.plain.states.parts[name])
            for lane in range(LANES):
                if lane not in lanes or not kept[lanes.index(lane)]:
                    assert torch.equal(part[self.slots[lane]], before[name][self.slots[lane]]), name
        for row, (lane, count) in enumerate(zip(lanes, kept, strict=True)):
            self.frontiers[lane] += count
            self.said[lane] += [one.token for one in drawn[row][:count]]

    def check_drawn(self, row: RoundRow, drawn: list[Drawn], logits: torch.Tensor) -> None:
        """What came down is what the sampler draws on the host from the same logits."""
        columns = [
            Column(
                params=row.params, position=row.frontier + 1 + i, purpose=DECODE, counts=Counter(row.ledger),
                ahead=tuple(row.tokens[1 : 1 + i]), logprobs=row.logprobs,
            )
            for i in range(len(drawn))
        ]  # fmt: skip
        expected = sample(logits.cpu(), columns, PUBLIC)
        assert [one.token for one in drawn] == [one.token for one in expected]
        for one, other in zip(drawn, expected, strict=True):
            assert (one.logprob is None) == (other.logprob is None) == (row.logprobs is None)
            if one.logprob is not None and other.logprob is not None:
                assert [token for token, _ in one.logprob.top] == [token for token, _ in other.logprob.top]
                assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-4)

    def close(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(got, expected, rtol=self.tolerance, atol=self.tolerance)


@pytest.mark.parametrize(("family", "storage"), CASES)
def test_recorded_rounds_equal_the_definition_step_by_step(family, storage, device):
    walk = Walk(family, storage, device, seed=1)
    shapes = [Shape(rows=2, width=1), Shape(rows=2, width=4), Shape(rows=3, width=4)]
    for shape in shapes:
        walk.graphs.add(shape, news=4)
    for lane, count in enumerate((5, 62, 70, 1)):
        walk.prefill(lane, count)
    # one token each; drafts of unequal lengths; a row that keeps nothing; over a page's edge; other lanes, other order
    walk.round([0, 1], [1, 1], [1, 1], shapes[0])
    walk.round([1, 0], [4, 2], [3, 0], shapes[1])
    walk.round([3, 0, 1], [1, 4, 3], [1, 2, 3], shapes[2])
    walk.round([2, 3], [3, 4], [1, 4], shapes[1])
    walk.round([2, 3], [1, 1], [0, 1], shapes[0])
    walk.prefill(2, 3)
    walk.round([2, 0, 3], [2, 2, 2], [2, 0, 1], shapes[2])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_recorded_round_draws_from_what_the_head_gave(family, device):
    """Neither gathered nor widened before: the draw reads logits of any float as they are."""
    dtype = torch.float16 if device.type == "cpu" else torch.bfloat16  # the interpreter's products of bf16 are wrong
    side = Side(family, "fp32", device, reference=False, dtype=dtype)
    graphs = recorded_rounds(side, device)
    recorded, tokens = graphs.add(Shape(rows=1, width=2), news=1), [3, 5]
    side.forward(moved(make_step([[9]], frontiers=[0], pages=[[2]], slots=[1], provisional=False), device))
    row = RoundRow(tokens=tokens, frontier=1, state_slot=1, pages=[2], params=NOBODY, logprobs=2)
    (drawn,) = graphs.round(recorded, [row])
    logits = recorded.logits
    assert logits.dtype is dtype and logits.shape == (2, VOCAB)
    columns = [Column(params=NOBODY, position=2 + i, purpose=DECODE, counts=Counter(), logprobs=2) for i in range(2)]
    expected = sample(logits.cpu().float(), columns, PUBLIC)
    assert [one.token for one in drawn] == [one.token for one in expected]
    for one, other in zip(drawn, expected, strict=True):
        assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-4)


@pytest.mark.parametrize("stacked", [True, False])
def test_experts_are_recorded_where_they_lie_in_stacks(stacked):
    """Those that the host calls one by one cannot be."""
    runtime = Runtime(device=CPU, dtype=torch.float32, reference=False, max_context=64, options={})
    with kernels() if stacked else nullcontext():
        model = FAMILIES["qwen35-moe"].model(RandomWeights(runtime), runtime)
    assert model.records_steps is stacked


def test_a_storage_without_a_kernel_is_not_recorded(device):
    """What attention would read on the host are the numbers of the recording."""
    walk = Walk("llama", "fp32", device, seed=2)
    for layer in walk.fast.cache.layers:
        for side in (layer.keys, layer.values):
            object.__setattr__(side, "is_cast", False)
    with pytest.raises(RuntimeError, match="recorded step"):
        walk.graphs.add(Shape(rows=1, width=1), news=1).forward.replay()
