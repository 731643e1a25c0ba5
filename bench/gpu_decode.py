"""Decode rounds of random weights at true shapes on a GPU, recorded and eager. Appends to ``rows/gpu_decode.jsonl``.

A round is what the engine does in one: fill or upload, forward pass, draw, fold of all columns. Rounds whose recorded
tokens are not those of the single steps have no row. ``python bench/gpu_decode.py 27b --layers 16 --rows 1,8``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ninfer_core.api.nn import Model, Runtime, Step
from ninfer_core.cli.rows import Row, append, row
from ninfer_core.engine.graphs import DecodeGraphs, Shape
from ninfer_core.kv.cache import KVCache, page_bytes
from ninfer_core.kv.pages import pages_for
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.random import RandomWeights
from ninfer_core.plugins import Plugins, load
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import Column, sample
from ninfer_core.testing.rig import make_step
from ninfer_kernels.sampling import DECODE

VOCAB = 248320
COMMON = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 262144,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "rms_norm_eps": 1e-6,
}
DENSE = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **COMMON}
MOE = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", **COMMON}
# hidden width, layers, inner width, query and KV heads, GDN value heads, one table for both ends
DENSE_GEOMETRIES = {
    "4b": (2560, 32, 9216, 16, 4, 32, True),
    "9b": (4096, 32, 12288, 16, 4, 32, False),
    "27b": (5120, 64, 17408, 24, 4, 48, False),
}
EXPERTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
GEOMETRIES = (*DENSE_GEOMETRIES, "35b-a3b")
INTERVAL = 4  # every fourth layer is full attention
GREEDY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=20, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, seed=0
)
WARM_ROUNDS = 3
COPY_BYTES = 4 << 30


def config(geometry: str, layers: int | None) -> dict[str, object]:
    """The artifact's config of a geometry, with as many of its layers as asked for."""
    if geometry == "35b-a3b":
        out = MOE | EXPERTS | shape_of(2048, 16, 2, 32) | {"tie_word_embeddings": False}
        count = layers or 40
    else:
        hidden, count, inner, heads, kv_heads, value_heads, tied = DENSE_GEOMETRIES[geometry]
        out = DENSE | shape_of(hidden, heads, kv_heads, value_heads)
        out |= {"intermediate_size": inner, "tie_word_embeddings": tied}
        count = layers or count
    kinds = ["full_attention" if i % INTERVAL == INTERVAL - 1 else "linear_attention" for i in range(count)]
    return out | {"num_hidden_layers": count, "layer_types": kinds}


def shape_of(hidden: int, heads: int, kv_heads: int, value_heads: int) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "linear_num_value_heads": value_heads,
    }


@dataclass(kw_only=True)
class Bench:
    """A built model with its cache and states, and a sequence per row at one context."""

    name: str
    model: Model
    cache: KVCache
    states: StatePool
    graphs: DecodeGraphs
    device: torch.device
    weight_bytes: int
    expert_bytes: int  # of them
    pages: int  # of a row

    def row_pages(self, rows: int) -> list[list[int]]:
        return [list(range(b * self.pages, (b + 1) * self.pages)) for b in range(rows)]

    def columns(self, shape: Shape, context: int) -> list[Column]:
        one = [
            Column(params=GREEDY, position=context + 1 + i, purpose=DECODE, counts=Counter())
            for i in range(shape.width)
        ]
        return one * shape.rows

    def recorded(self, shape: Shape, context: int) -> list[int]:
        """One recorded round: the tokens."""
        recorded = self.graphs.choose(shape.rows, shape.width)
        assert recorded is not None
        recorded.fill(self.fed(shape), [context] * shape.rows, range(shape.rows), self.row_pages(shape.rows))
        drawn = sample(self.graphs.forward(recorded).logits, self.columns(shape, context), VOCAB)
        self.graphs.fold(recorded, [shape.width] * shape.rows)
        return [one.token for one in drawn]

    def eager(self, shape: Shape, context: int) -> list[int]:
        """The same, step by step."""
        step = self.step(shape, context)
        out = self.model.forward(step, self.cache, self.states.parts)
        drawn = sample(out.logits, self.columns(shape, context), VOCAB)
        self.model.fold(step, out.records, [shape.width] * shape.rows, self.states.parts)
        return [one.token for one in drawn]

    def fed(self, shape: Shape) -> list[list[int]]:
        """Tokens all over the vocabulary, so that experts are chosen as different tokens choose them."""
        numbers = [(i + 1) * 7919 % VOCAB for i in range(shape.rows * shape.width)]
        return [numbers[b * shape.width : (b + 1) * shape.width] for b in range(shape.rows)]

    def step(self, shape: Shape, context: int) -> Step:
        step = make_step(
            self.fed(shape), frontiers=[context] * shape.rows, pages=self.row_pages(shape.rows), provisional=True
        )
        names = ("token_ids", "positions", "page_table", "cache_slots", "logit_index")
        return replace(step, **{name: getattr(step, name).to(self.device) for name in names})

    def clear(self) -> None:
        for part in self.states.parts.values():
            part.zero_()

    def bytes_moved(self, shape: Shape, context: int, page: int) -> int:
        """The least a round has to move: weights once, of the experts as many as so many tokens choose by chance, each
        row's state in and out, its keys and values."""
        state = 2 * self.states.image_bytes
        chance = EXPERTS["num_experts_per_tok"] / EXPERTS["num_experts"]
        unread = round(self.expert_bytes * (1 - chance) ** (shape.rows * shape.width))
        return self.weight_bytes - unread + shape.rows * (state + pages_for(context) * page)


def build(name: str, layers: int | None, lanes: int, tokens: int, kv: str, plugins: Plugins) -> Bench:
    """``tokens``: the longest context, drafts included."""
    device = torch.device("cuda", 0)
    family, dtype = plugins.model_families["qwen35"], plugins.kv_dtypes[kv]
    described = config(name, layers)
    from ninfer_qwen35.config import read
    from ninfer_qwen35.model import Qwen35Model

    runtime = Runtime(device=device, dtype=torch.bfloat16, reference=False, max_context=tokens, options={})
    weights = RandomWeights(runtime)
    model = Qwen35Model(read(described), weights, runtime)
    assert family.state_layout is not None
    states = StatePool(family.state_layout(described, runtime), lanes, device)
    pages = pages_for(tokens)
    cache = KVCache(family.kv_geometry(described), dtype, lanes * pages + 1, device, False)
    graphs = DecodeGraphs(model, cache, states, device, pages=pages, scratch_page=lanes * pages)
    stacks = [stack for block in model.blocks for stack in getattr(block.ffn, "stacks", None) or ()]
    label = f"{name}-L{described['num_hidden_layers']}-{kv}"
    return Bench(
        name=label, model=model, cache=cache, states=states, graphs=graphs, device=device,
        weight_bytes=weights.matrix_bytes, expert_bytes=sum(stack.nbytes for stack in stacks), pages=pages,
    )  # fmt: skip


def measure(bench: Bench, shape: Shape, context: int, rounds: int, page: int) -> list[Row]:
    """Recorded and eager rounds of one shape at one context; AssertionError where their tokens differ."""
    said = []
    impls: dict[str, Callable[[Shape, int], list[int]]] = {"eager": bench.eager}
    if bench.graphs.choose(shape.rows, shape.width) is not None:
        impls["graph"] = bench.recorded
    for one in impls.values():
        bench.clear()
        said.append([one(shape, context) for _ in range(WARM_ROUNDS)])
    assert all(tokens == said[0] for tokens in said), f"{bench.name} {shape}: graph and eager draw different tokens"
    name = f"{bench.name}-R{shape.rows}-W{shape.width}-C{context}"
    moved = bench.bytes_moved(shape, context, page)
    out = []
    for impl, one in impls.items():
        times = times_ms(lambda one=one: one(shape, context), rounds)
        out.append(row("decode_round", name, impl, times, tokens=shape.rows * shape.width, bytes_moved=moved))
    return out


def times_ms(call: Callable[[], object], count: int) -> list[float]:
    """Of each call, with what it leaves to the device waited for."""
    out = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        out.append(1e3 * (time.perf_counter() - start))
    return out


def copy_row(rounds: int) -> Row:
    """What this device copies, as the yardstick of the others."""
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")  # zeros may move faster
    target = torch.empty_like(source)
    times_ms(lambda: target.copy_(source), WARM_ROUNDS)
    return row(
        "copy",
        f"{COPY_BYTES >> 30}GiB",
        "torch",
        times_ms(lambda: target.copy_(source), rounds),
        bytes_moved=2 * COPY_BYTES,
    )


def line(item: Row, copy: Row) -> str:
    rate = item.bytes_moved / item.median_ms / 1e9
    share = rate / (copy.bytes_moved / copy.median_ms / 1e9)
    spread = f"p20 {item.p20_ms:8.3f}  p50 {item.median_ms:8.3f}  p80 {item.p80_ms:8.3f} ms"
    return f"{item.op:<12} {item.shape:<34} {item.impl:<6} {spread}  {rate:5.2f} TB/s  {share:4.2f} of a copy"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("--layers", type=int, help="fewer than the geometry has")
    parser.add_argument("--rows", type=numbers, default=[1, 8])
    parser.add_argument("--widths", type=numbers, default=[1, 4, 8], help="columns of a row: 1 and its drafts")
    parser.add_argument("--contexts", type=numbers, default=[1024, 8192])
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "rows" / "gpu_decode.jsonl")
    given = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    plugins = load()
    with torch.inference_mode():
        longest = max(given.contexts) + max(given.widths)
        bench = build(given.geometry, given.layers, max(given.rows), longest, given.kv_dtype, plugins)
        shapes = [Shape(rows=rows, width=width) for rows in given.rows for width in given.widths]
        if getattr(bench.model, "records_steps", False):
            bench.graphs.record(shapes)
        copy = copy_row(given.rounds)
        append(given.out, [copy])
        page = page_bytes(bench.cache.geometry, bench.cache.dtype)
        for context in given.contexts:
            for shape in shapes:
                for item in measure(bench, shape, context, given.rounds, page):
                    append(given.out, [item])
                    print(line(item, copy), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
