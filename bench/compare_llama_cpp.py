"""NInfer beside llama.cpp: same file, same threads, one after the other in turns. Appends to ``rows/llama_cpp.jsonl``.

llama.cpp is the prebuilt CPU library of the npm package ``node-llama-cpp``, installed below ``bench/node_modules`` on
the first run. Without npm only NInfer is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from ninfer_core import demo
from ninfer_core.cli.rows import Row, append, p90, quantiles, row

HERE = Path(__file__).resolve().parent
VERSION = "3.22.1"
TARGETS = {"prefill": 1.5, "decode": 1.2}  # times llama.cpp


class LlamaCpp(msgspec.Struct):
    """What ``llama_cpp.mjs`` prints."""

    prefill_ms: list[float]
    decode_ms: list[float]
    decoded: int
    build: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file; the demo model when left out")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    model = args.model or demo.demo_model()
    installed = install()
    ours: dict[str, list[Row]] = {"prefill": [], "decode": []}
    theirs: dict[str, list[float]] = {"prefill": [], "decode": []}
    decoded = 0
    for _ in range(args.rounds):
        if installed:
            measured = llama_cpp(model, args)
            theirs["prefill"] += measured.prefill_ms
            theirs["decode"] += measured.decode_ms
            decoded = measured.decoded
        for item in ninfer(model, args):
            if item.op in ours:
                ours[item.op].append(item)
    rows = [merged(items) for items in ours.values()]
    if installed:
        tokens = {"prefill": args.prompt_tokens, "decode": decoded}
        note = f"node-llama-cpp {VERSION}, {Path(model).name}"
        rows += [row(op, rows[0].shape, "llama.cpp", theirs[op], tokens=tokens[op], note=note) for op in theirs]
    report(rows)
    append(HERE / "rows" / "llama_cpp.jsonl", rows)
    return 0


def install() -> bool:
    """Put llama.cpp below ``bench/node_modules`` unless it is there; False where that cannot be done."""
    if (HERE / "node_modules" / "node-llama-cpp").exists():
        return True
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if shutil.which("npm") is None or machine is None or sys.platform != "linux":
        print("llama.cpp is not measured: it needs npm on Linux (x86-64 or arm64)")
        return False
    packages = [f"node-llama-cpp@{VERSION}", f"@node-llama-cpp/linux-{machine}@{VERSION}"]
    # without the optional packages: they hold the builds for GPUs, several hundred MiB
    flags = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--silent"]
    done = subprocess.run(["npm", "install", "--prefix", str(HERE), *flags, *packages], check=False)
    if done.returncode:
        print("llama.cpp is not measured: npm could not install node-llama-cpp")
    return done.returncode == 0


def llama_cpp(model: str, args: argparse.Namespace) -> LlamaCpp:
    numbers = (args.prompt_tokens, args.decode_tokens, 1, args.threads)
    command = ["node", str(HERE / "llama_cpp.mjs"), model, *map(str, numbers)]
    return msgspec.json.decode(subprocess.check_output(command, cwd=HERE), type=LlamaCpp)


def ninfer(model: str, args: argparse.Namespace) -> list[Row]:
    """The rows ``ninfer bench`` prints."""
    shape = ["--prompt-tokens", str(args.prompt_tokens), "--decode-tokens", str(args.decode_tokens)]
    code = "import sys; from ninfer_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bench", model, *shape, "--repeats", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    out = subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL)
    return [msgspec.json.decode(line, type=Row) for line in out.splitlines()]


def merged(items: list[Row]) -> Row:
    """One row of the rounds' medians."""
    medians = [item.median_ms for item in items]
    low, median, high = quantiles(medians)
    return msgspec.structs.replace(
        items[-1], median_ms=median, p20_ms=low, p80_ms=high, p90_ms=p90(medians), max_ms=max(medians)
    )


def report(rows: list[Row]) -> None:
    rates = {(item.impl, item.op): item.tokens_per_second for item in rows}
    for item in rows:
        print(f"{item.op:<8} {item.impl:<10} {item.tokens_per_second:8.1f} tokens/s")
    for op, target in TARGETS.items():
        if ("llama.cpp", op) in rates:
            ratio = rates["ninfer", op] / rates["llama.cpp", op]
            print(f"{op}: {ratio:.2f} times llama.cpp (target {target})")


if __name__ == "__main__":
    sys.exit(main())
