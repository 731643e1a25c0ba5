"""NInfer beside transformers, the floor: random weights of one geometry, one engine after the other.

    python bench/compare_transformers.py 27b --layers 16 --prompt-tokens 512,8192 --contexts 1024 --rows 1

Runs ``ninfer bench --geometry``, then the same sizes in transformers (bf16, its dynamic cache, greedy, every token read
back), and prints how many times faster each row is. Appends to ``rows/transformers.jsonl``.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from ninfer_core.cli.bench.geometry import known
from ninfer_core.cli.bench.plan import numbers
from ninfer_core.cli.rows import Row, append, row
from ninfer_core.plugins import load

HERE = Path(__file__).resolve().parent
WARM_STEPS = 3


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry")
    parser.add_argument("--layers", type=int, help="fewer than the geometry has")
    parser.add_argument("--prompt-tokens", type=numbers(1, 1 << 20), default=(512, 2048, 8192))
    parser.add_argument("--contexts", type=numbers(1, 1 << 20), default=(1024, 8192))
    parser.add_argument("--rows", type=numbers(1, 256), default=(1,))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--out", type=Path, default=HERE / "rows" / "transformers.jsonl")
    given = parser.parse_args(argv)
    device = torch.device("cuda" if given.device == "auto" and torch.cuda.is_available() else "cpu")
    ours = ninfer(given)
    append(given.out, ours)
    with torch.inference_mode():
        theirs = list(transformers_rows(given, device))
    append(given.out, theirs)
    report(ours, theirs)
    return 0


def ninfer(given: argparse.Namespace) -> list[Row]:
    """The rows ``ninfer bench`` has of the same sizes."""
    lists = {
        "--prompt-tokens": given.prompt_tokens,
        "--contexts": given.contexts,
        "--rows": given.rows,
        "--widths": (1,),
    }
    line = [part for flag, values in lists.items() for part in (flag, ",".join(map(str, values)))]
    line += ["--rounds", str(given.rounds), "--repeats", str(given.repeats), "--device", given.device]
    line += ["--layers", str(given.layers)] if given.layers else []
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.jsonl")
        command = [sys.executable, "-m", "ninfer_core.cli.main", "bench", "--geometry", given.geometry, *line]
        subprocess.run([*command, "--out", out], check=True)
        return [msgspec.json.decode(one, type=Row) for one in Path(out).read_bytes().splitlines()]


def transformers_rows(given: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    _, geometry = known(load())[given.geometry]
    model = build(geometry(given.layers), device)
    label = given.geometry + (f"-L{given.layers}" if given.layers else "") + "-bf16"
    for tokens in given.prompt_tokens:
        times = [prefill_ms(model, tokens) for _ in range(given.repeats + 1)][1:]
        yield row("prefill", f"R1-P{tokens}", "transformers", times, tokens=tokens, note=label)
    for context in given.contexts:
        for rows in given.rows:
            times = decode_ms(model, rows, context, given.rounds)
            yield row("decode_round", f"R{rows}-W1-C{context}", "transformers", times, tokens=rows, note=label)


def build(config: Mapping[str, Any], device: torch.device) -> Any:
    """transformers' model of an artifact's config, with random weights made on the device; bf16, on a CPU fp32."""
    own = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "rope_theta")}
    if "rope_theta" in config:
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    else:
        own["rope_parameters"] = {"rope_type": "default", "mrope_interleaved": True, **config["rope_parameters"]}
    described = AutoConfig.for_model(config["model_type"], **own)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        return AutoModelForCausalLM.from_config(described, dtype=dtype).eval()


class Batch:
    """Sequences of one length in transformers: their cache, and the last token of each."""

    def __init__(self, model: Any, rows: int, tokens: int) -> None:
        self.model = model
        self.cache = DynamicCache(config=model.config)
        # releases differ in what they call it
        self.named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.prompt = torch.randint(model.config.vocab_size, (rows, tokens), device=model.device)
        self.step(self.prompt)

    def step(self, ids: torch.Tensor | None = None) -> list[int]:
        """Feed ``ids``, or the last tokens; the next ones, read back as an engine has to."""
        fed = self.last if ids is None else ids
        out = self.model(fed, use_cache=True, logits_to_keep=1, **{self.named: self.cache})
        self.last = out.logits[:, -1].argmax(-1, keepdim=True)
        tokens: list[int] = self.last[:, 0].tolist()
        return tokens


def prefill_ms(model: Any, tokens: int) -> float:
    start = time.perf_counter()
    Batch(model, 1, tokens)
    return 1e3 * (time.perf_counter() - start)


def decode_ms(model: Any, rows: int, context: int, rounds: int) -> list[float]:
    batch = Batch(model, rows, context)
    for _ in range(WARM_STEPS):
        batch.step()
    stamps = [time.perf_counter()]
    for _ in range(rounds):
        batch.step()
        stamps.append(time.perf_counter())
    return [1e3 * (after - before) for before, after in pairwise(stamps)]


def report(ours: Sequence[Row], theirs: Sequence[Row]) -> None:
    """A line per row of transformers that ``ninfer bench`` has too."""
    found = {(one.op, one.shape.partition("-D")[0]): one for one in ours if one.op in ("prefill", "decode_round")}
    for other in theirs:
        own = found.get((other.op, other.shape))
        if own is None:
            continue
        ratio = other.median_ms / own.median_ms
        times = f"ninfer {own.median_ms:9.3f} ms  transformers {other.median_ms:9.3f} ms"
        print(f"{other.op:<13} {other.shape:<14} {times}  {ratio:6.2f} times")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
