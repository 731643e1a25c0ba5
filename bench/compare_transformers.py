"""NInfer beside transformers, the floor: random weights of one geometry, one engine after the other.

    python bench/compare_transformers.py 27b --layers 16 --prompt-tokens 512,8192 --contexts 1024 --rows 1

Runs ``ninfer bench --geometry``, then the same sizes in transformers (bf16, its dynamic cache, greedy, every token read
back; fp32 on a CPU), and prints how many times faster each row is. Appends each row to ``rows/transformers.jsonl`` as
soon as it is measured.
"""

from __future__ import annotations

import argparse
import inspect
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from ninfer_core.cli.bench.geometry import known, names
from ninfer_core.cli.bench.plan import numbers
from ninfer_core.cli.main import guarded
from ninfer_core.cli.rows import Row, append, check_out, row
from ninfer_core.cli.rows import device as name_of
from ninfer_core.plugins import load

HERE = Path(__file__).resolve().parent
WARM_STEPS = 3
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def main(argv: Sequence[str]) -> int:
    """Measure, append and print; the status of ``ninfer bench`` where that is not 0."""
    given = parsed(argv)
    check_out(given.out)
    device = torch.device("cuda" if given.device == "auto" and torch.cuda.is_available() else "cpu")
    status, ours = ninfer(given)
    if status:
        return status
    theirs = []
    with torch.inference_mode():
        for item in transformers_rows(given, device):
            theirs.append(told(item, argv, device))
            append(given.out, theirs[-1:])
    report(ours, theirs)
    return 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The options; what ``ninfer bench`` refuses it is left to refuse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    lengths, counts = listed(numbers(1, 1 << 20)), listed(numbers(1, 256))
    add = parser.add_argument
    add("geometry", help=f"whose sizes: {', '.join(names(load()))}")
    add("--layers", type=int, metavar="N", help="fewer than the geometry has")
    add("--prompt-tokens", type=lengths, metavar="A,B", default="512,2048,8192", help="prompts to read [%(default)s]")
    add("--contexts", type=lengths, metavar="A,B", default="1024,8192", help="tokens before a round [%(default)s]")
    add("--rows", type=counts, metavar="A,B", default="1", help="sequences of a round [%(default)s]")
    add("--rounds", type=int, metavar="N", default=20, help="rounds behind each row of --contexts [%(default)s]")
    add("--repeats", type=int, metavar="N", default=3, help="prompts behind each row of prefill [%(default)s]")
    add("--device", choices=("auto", "cpu"), default="auto", help="auto: the GPU where there is one [%(default)s]")
    out = HERE / "rows" / "transformers.jsonl"
    add("--out", type=Path, metavar="FILE", default=out, help=f"append the rows to this file [bench/rows/{out.name}]")
    return parser.parse_args(argv)


def listed(parse: Callable[[str], tuple[int, ...]]) -> Callable[[str], tuple[int, ...]]:
    """``parse`` for argparse, which would keep to itself what is accepted."""

    def one(value: str) -> tuple[int, ...]:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{value!r} is not accepted; it takes {error}") from None

    return one


def ninfer(given: argparse.Namespace) -> tuple[int, list[Row]]:
    """Status of ``ninfer bench`` at the same sizes, and its rows, which it adds to the file: kept by an early end."""
    lists = {
        "--prompt-tokens": given.prompt_tokens,
        "--contexts": given.contexts,
        "--rows": given.rows,
        "--widths": (1,),
    }
    line = [part for flag, values in lists.items() for part in (flag, ",".join(map(str, values)))]
    line += ["--rounds", str(given.rounds), "--repeats", str(given.repeats), "--device", given.device]
    line += ["--layers", str(given.layers)] if given.layers is not None else []
    command = [sys.executable, "-m", "ninfer_core.cli.main", "bench", f"--geometry={given.geometry}", *line]
    before = given.out.stat().st_size
    status = subprocess.run([*command, f"--out={given.out}"], check=False).returncode
    if status:
        return (status if status > 0 else 128 - status), []  # of a signal, as a shell has it
    added = given.out.read_bytes()[before:].split(b"\n")
    return 0, [msgspec.json.decode(one, type=Row) for one in added if one]


def transformers_rows(given: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    _, geometry = known(load())[given.geometry]
    model = build(geometry(given.layers), device)
    layers = f"-L{given.layers}" if given.layers is not None else ""
    label = f"{given.geometry}{layers}-{DTYPES[model.dtype]}"
    for tokens in given.prompt_tokens:
        times = [prefill_ms(model, tokens) for _ in range(given.repeats + 1)][1:]
        yield row("prefill", f"R1-P{tokens}", "transformers", times, tokens=tokens, note=label)
    for context in given.contexts:
        for rows in given.rows:
            times = decode_ms(model, rows, context, given.rounds)
            yield row("decode_round", f"R{rows}-W1-C{context}", "transformers", times, tokens=rows, note=label)


def told(item: Row, argv: Sequence[str], device: torch.device) -> Row:
    """The row with this command (without where the file lies), the device and the release of transformers."""
    words = ["python", "bench/compare_transformers.py"]
    words += [word for flag, word in pairwise(["", *argv]) if "--out" not in (flag, word.partition("=")[0])]
    versions = {**item.versions, "transformers": transformers.__version__}
    return msgspec.structs.replace(item, command=shlex.join(words), versions=versions, device=name_of(device))


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
    sys.exit(guarded(main, sys.argv[1:]))
