"""GPU kernels one by one, at the shapes of published models: graph replays over inputs that the cache cannot hold.

    python bench/ops.py [--tested] [NAME ...]     # "linear", "tiled_linear.q4_g64", "gdn"; none: all of them

Appends to ``rows/ops.jsonl``. The tables of the ops' tests run first, and a red test has no row; ``--tested`` says that
they were green just before. Nor has a result a row that differs from its definition at the inputs that are timed.
``bytes_moved`` is the least an op has to move. Launches follow each other as in a step, the next one let in early.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from kernel_ops import Case, cases, published
from kernel_ops.case import Inputs, Result, error

from ninfer_core.cli.rows import Row, append, row
from ninfer_kernels.tuning import GraphTimer, device_facts

HERE = Path(__file__).resolve().parent
MOST_COPIES = 64
COMPILING = 14  # threads


class Wrong(Exception):
    """A result that is not its definition's."""


def main(argv: Sequence[str]) -> int:
    asked = parsed(argv)
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    wanted = chosen(cases(published()), asked.names)
    red = set() if asked.tested else {tests for tests in {case.tests for case in wanted} if not passes(tests)}
    for case in wanted:
        if case.tests in red:
            print(f"{case.op} {case.shape}: no row, {case.tests} fails", file=sys.stderr)
    green = [case for case in wanted if case.tests not in red]
    command = "python bench/ops.py --tested" if asked.tested else "python bench/ops.py"
    return int(not measure(green, torch.device("cuda", 0), command) or bool(red))


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time GPU kernels one by one.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="ops whose names begin so; none: all")
    parser.add_argument("--tested", action="store_true", help="their tests were green just before: do not run them")
    return parser.parse_args(argv)


def chosen(known: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases of ops that begin with one of ``names``, all of them without; SystemExit for a name that none has."""
    for name in names:
        if not any(case.op.startswith(name) for case in known):
            sys.exit(f"no op is called {name!r}; known: {', '.join(sorted({case.op for case in known}))}")
    return [case for case in known if not names or case.op.startswith(tuple(names))]


def passes(tests: str) -> bool:
    """Whether a file of tests is green, spread over half of the cores where pytest can."""
    spread = ["-n", str(max(1, (os.cpu_count() or 2) // 2))] if importlib.util.find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *spread, f"tests/kernels/{tests}"]
    return subprocess.run(command, cwd=HERE.parent, check=False, stdout=sys.stderr).returncode == 0


def measure(wanted: Sequence[Case], device: torch.device, command: str) -> bool:
    """Time every case, keep and show its rows; whether none is missing. stderr says how long each op took."""
    begun = time.perf_counter()
    compile_all(wanted, device)
    print(f"{time.perf_counter() - begun:6.1f} s until all was compiled", file=sys.stderr)
    seconds, complete = dict.fromkeys((case.op for case in wanted), 0.0), True
    with torch.inference_mode():
        for case in wanted:
            start = time.perf_counter()
            complete &= kept(case, device, f"{command} {case.op}")
            seconds[case.op] += time.perf_counter() - start
    for op, spent in seconds.items():
        print(f"{spent:6.1f} s {op}", file=sys.stderr)
    print(f"{time.perf_counter() - begun:6.1f} s in all", file=sys.stderr)
    return complete


def compile_all(wanted: Sequence[Case], device: torch.device) -> None:
    """Run everything once, because compilers take most of the time: ops in threads, the cases of one after another,
    since they share kernels. What fails is told when it is timed."""
    by_op: dict[str, list[Case]] = {}
    for case in wanted:
        by_op.setdefault(case.op, []).append(case)

    def once(own: Sequence[Case]) -> None:
        for case in own:
            with suppress(Exception), torch.inference_mode():
                inputs = case.make(seeded(device))
                for run in (case.run, *case.beside.values()):
                    run(inputs)

    with ThreadPoolExecutor(COMPILING) as pool:
        list(pool.map(once, by_op.values()))
    torch.cuda.empty_cache()


def kept(case: Case, device: torch.device, command: str) -> bool:
    """Keep and show the rows of a case; False where one is missing."""
    try:
        for item in measured(case, device):
            append(HERE / "rows" / "ops.jsonl", [msgspec.structs.replace(item, command=command)])
            print(shown(item), flush=True)
    except Exception as problem:
        text = " ".join(str(problem).split())[:300]
        print(f"{case.op} {case.shape}: no row, {type(problem).__name__}: {text}", file=sys.stderr, flush=True)
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def measured(case: Case, device: torch.device) -> Iterator[Row]:
    """The row of a case, and those of others beside it."""
    timer, runs = GraphTimer(device), {"triton": case.run, **case.beside}
    wanted = case.reference(case.make(seeded(device)))
    errors, size = {}, 0
    for impl, run in runs.items():
        errors[impl], moved = checked(case, run, wanted, device)
        size = size or moved  # what ours moves is what the operation has to
    del wanted
    generator = seeded(device)
    copies = [case.make(generator) for _ in range(copies_of(size, device))]
    for impl, run in runs.items():

        def work(run: Callable[[Inputs], Result] = run) -> None:
            for inputs in copies:
                run(inputs)

        times = [1e3 * seconds / len(copies) for seconds in timer.times(work)]
        note = f"error {errors[impl]:.1e}"
        yield row(case.op, case.shape, impl, times, bytes_moved=size, flops=case.flops, note=note)


def checked(case: Case, run: Callable[[Inputs], Result], wanted: Result, device: torch.device) -> tuple[float, int]:
    """The error of one implementation, and the bytes it moves; Wrong where the error is too large."""
    inputs = case.make(seeded(device))
    result = run(inputs)
    found = error(case.compared(inputs, result), wanted)
    if not found <= case.tolerance:
        raise Wrong(f"its error is {found:.1e}, and {case.tolerance:.0e} is tolerated")
    return found, case.bytes_moved(inputs, result)


def copies_of(size: int, device: torch.device) -> int:
    """So many inputs that a launch finds none of its own in the cache."""
    return min(MOST_COPIES, max(1, math.ceil(2 * device_facts(device).cache_bytes / max(size, 1))))


def seeded(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def shown(item: Row) -> str:
    flops = f"{item.flops_per_second / 1e12:6.0f} TFLOP/s" if item.flops else ""
    rate = f"{item.bytes_per_second / 1e12:6.2f} TB/s"
    return f"{item.op:27} {item.shape:34} {item.impl:7} {1e3 * item.median_ms:9.2f} us {rate} {flops} {item.note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
