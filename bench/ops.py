"""GPU kernels one by one, at the shapes of published models: graph replays over inputs that the cache cannot hold.

    python bench/ops.py [NAME ...]       # "linear", "tiled_linear.q4_g64", "moe.few"; none: all of them

Appends to ``rows/ops.jsonl``. The table of an op's tests runs first: a red test has no row. A row is one launch with
the block sizes that its shape has on this device; ``bytes_moved`` are those of its inputs. Beside a dense product
stands torch's own.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from ninfer_core.cli.rows import Row, append, row
from ninfer_kernels.tiled_linear import FORMATS
from ninfer_kernels.tuning import GraphTimer, Tunable, device_facts, input_bytes, rotating_inputs

HERE = Path(__file__).resolve().parent
# rows, columns: Qwen3.5 27B, then 35B-A3B
MATRICES = ((34816, 5120), (16480, 5120), (5120, 17408), (5120, 6144), (12352, 2048), (9216, 2048), (2048, 4096))
EXPERTS = {"N": 2048, "F": 512, "F_SHARED": 512, "C": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """Where a launch that chooses its blocks is, the tests that gate it, and its shapes."""

    module: str
    name: str
    tests: str
    shapes: tuple[dict[str, int], ...]

    def tunable(self) -> Tunable:
        module = importlib.import_module(f"ninfer_kernels.{self.module}")
        return next(one for one in vars(module).values() if isinstance(one, Tunable) and one.name == self.name)


def matrices(*wanted: tuple[int, int]) -> tuple[dict[str, int], ...]:
    return tuple({"N": N, "K": K} for N, K in wanted)


OPS = (
    Op(module="linear.gpu", name="linear.few_rows", tests="test_linear.py", shapes=matrices(*MATRICES)),
    *(
        Op(
            module="tiled_linear.blocks",
            name=f"tiled_linear.{form}",
            tests="test_tiled_linear.py",
            shapes=matrices(*MATRICES[:4]),
        )
        for form in FORMATS
    ),
    Op(
        module="moe.few_blocks",
        name="moe.few_choose",
        tests="test_moe_gpu.py",
        shapes=({"N": 2048, "E": 256, "C": 8},),
    ),
    Op(module="moe.few_blocks", name="moe.few_gate_up", tests="test_moe_gpu.py", shapes=(EXPERTS,)),
    Op(module="moe.few_blocks", name="moe.few_down", tests="test_moe_gpu.py", shapes=(EXPERTS,)),
    *(
        Op(
            module="moe.many_blocks",
            name=f"moe.many_{half}",
            tests="test_moe_gpu.py",
            shapes=tuple({"N": 2048, "F": 512, "BM": BM, "bytes": 2} for BM in (64, 128)),
        )
        for half in ("gate_up", "down")
    ),
    Op(
        module="paged_attention.blocks",
        name="paged_attention.attend",
        tests="test_paged_attention_gpu.py",
        shapes=tuple(
            {"H": H, "G": G, "D": 256, "BQ": BQ, "bytes": 2} for H, G in ((24, 4), (16, 2)) for BQ in (16, 128)
        ),
    ),
)


def main(names: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    wanted = [op for op in OPS if not names or any(op.name.startswith(name) for name in names)]
    if not wanted:
        sys.exit(f"no op is called {' or '.join(names)}; known: {', '.join(op.name for op in OPS)}")
    red = {tests for tests in {op.tests for op in wanted} if not passes(tests)}
    device = torch.device("cuda", 0)
    with torch.inference_mode():
        for op in wanted:
            if op.tests in red:
                print(f"{op.name}: no row, {op.tests} fails", file=sys.stderr)
                continue
            for shape in op.shapes:
                for item in measured(op, shape, device):
                    append(HERE / "rows" / "ops.jsonl", [item])
                    print(f"{item.op:26} {item.shape:28} {item.impl:8} {1e3 * item.median_ms:9.2f} us "
                          f"{item.bytes_per_second / 1e12:6.2f} TB/s", flush=True)  # fmt: skip
    return 1 if red else 0


def passes(tests: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/kernels/{tests}"]
    return subprocess.run(command, cwd=HERE.parent, check=False, stdout=sys.stderr).returncode == 0


def measured(op: Op, shape: dict[str, int], device: torch.device) -> Iterator[Row]:
    """The row of one shape, and torch's where it has such a product."""
    tunable, facts, timer = op.tunable(), device_facts(device), GraphTimer(device)
    copies = rotating_inputs(tunable, shape, facts, device)
    chosen = tunable.blocks(device, **shape)
    name = "-".join(f"{key}{value}" for key, value in shape.items())
    size = input_bytes(copies[0])

    def of(run: Callable[..., object], impl: str, note: str = "") -> Row:
        run(copies[0])  # compiled before it is recorded

        def work() -> None:
            for inputs in copies:
                run(inputs)

        times = [1e3 * seconds / len(copies) for seconds in timer.times(work)]
        made = row(op.name, name, impl, times, bytes_moved=size, note=note)
        return msgspec.structs.replace(made, command=f"python bench/ops.py {op.name}")

    yield of(lambda inputs: tunable.run(inputs, chosen), "triton", " ".join(f"{k}={v}" for k, v in chosen.items()))
    if op.name == "linear.few_rows":
        yield of(lambda inputs: torch.mm(inputs[0], inputs[1].t()), "torch")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
