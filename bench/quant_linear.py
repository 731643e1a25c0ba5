"""Block matrices at the demo model's shapes: native route beside torch. Appends to ``rows/quant_linear.jsonl``.

An op whose result is not its reference's to rounding has no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from ninfer_core.cli.rows import Row, append, row
from ninfer_kernels.quant_linear import BLOCKS, Matrix, TorchLinear, linear, reference, why_not_native

CASES = [  # format, rows, columns, activation rows
    *[("q4_1", rows, columns, 1) for rows, columns in ((960, 576), (576, 576), (3072, 576), (576, 1536))],
    *[("q4_1", 3072, 576, tokens) for tokens in (4, 16, 512)],
    ("q8_0", 49152, 576, 1),
    *[(format, 3072, 1536, tokens) for format in ("q4_0", "q5_0", "q4_k", "q6_k", "bf16") for tokens in (1, 512)],
]
SECONDS = 0.3  # spent on each measurement


def main() -> None:
    if (reason := why_not_native()) is not None:
        print(f"only torch is measured: {reason}")
    rows: list[Row] = []
    for format, count, columns, tokens in CASES:
        rows += measure(format, count, columns, tokens)
        print(line(rows[-2], rows[-1], tokens * count * columns))
    append(Path(__file__).parent / "rows" / "quant_linear.jsonl", rows)


def measure(format: str, count: int, columns: int, tokens: int) -> list[Row]:
    """Two rows: torch on decoded fp32 weights, then the route ``linear`` chooses."""
    matrix = Matrix(stored(format, count, columns), count, columns)
    x = torch.randn(tokens, columns)
    fast, dense = linear(format, [matrix]), TorchLinear(format, [matrix])
    weights = reference.decode(format, matrix.data, count, columns)
    bound = columns * 2.0**-23 * (x.abs() @ weights.abs().T)
    assert ((fast(x) - dense(x)).abs() <= bound).all(), f"{format} {count}x{columns} T{tokens} is wrong"
    shape, op = f"N{count}-K{columns}-T{tokens}", f"quant_linear {format}"
    return [
        row(op, shape, "torch-fp32", times_ms(lambda: dense(x)), tokens=tokens, bytes_moved=4 * count * columns),
        row(op, shape, "native", times_ms(lambda: fast(x)), tokens=tokens, bytes_moved=matrix.data.numel()),
    ]


def stored(format: str, count: int, columns: int) -> torch.Tensor:
    """Random codes under small scales."""
    if format == "bf16":
        return torch.randn(count * columns).bfloat16().view(torch.uint8)
    block = BLOCKS[format]
    # bytes below 64 make small positive binary16 numbers wherever a format keeps its scales
    return torch.randint(0, 36, (count * columns // block.values * block.bytes,), dtype=torch.uint8)


def times_ms(call: Callable[[], object]) -> list[float]:
    call()
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def line(dense: Row, fast: Row, products: int) -> str:
    gflops, gbytes = 2e-6 * products / fast.p20_ms, 1e-6 * fast.bytes_moved / fast.p20_ms
    return (
        f"{fast.op:<18} {fast.shape:<18} {1e3 * fast.p20_ms:9.0f} us  {gbytes:6.1f} GB/s {gflops:7.1f} GFLOP/s"
        f"  torch fp32 {1e3 * dense.p20_ms:9.0f} us  {dense.p20_ms / fast.p20_ms:5.2f}x"
    )


if __name__ == "__main__":
    main()
