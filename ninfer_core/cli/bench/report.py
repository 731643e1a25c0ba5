"""Where rows go: JSON on stdout or to a file, a line for people on stderr. The yardstick they are measured by."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ninfer_core.cli.rows import Row, append, device, row

if TYPE_CHECKING:
    import torch

COPIED = {"cuda": 4 << 30, "cpu": 1 << 28}  # bytes of one copy
COPIES = 10


class Report:
    """Every row of one command."""

    def __init__(self, command: str, file: str | None, where: torch.device) -> None:
        self._command, self._device = command, device(where)
        self._file = Path(file) if file is not None else None
        self._copy: Row | None = None

    def add(self, rows: Sequence[Row]) -> None:
        rows = [msgspec.structs.replace(item, command=self._command, device=self._device) for item in rows]
        for item in rows:
            if item.op == "copy":
                self._copy = item
            if self._file is None:
                print(msgspec.json.encode(item).decode(), flush=True)
            print(line(item, self._copy), file=sys.stderr, flush=True)
        if self._file is not None:
            append(self._file, rows)


def line(item: Row, copy: Row | None) -> str:
    """One row for people: times, and the rates that its kind of row has."""
    rates = []
    if item.op in ("prefill", "decode", "decode_round"):
        rates.append(f"{item.tokens_per_second:9.1f} tokens/s")
    if item.bytes_moved:
        rates.append(f"{item.bytes_per_second / 1e9:7.1f} GB/s")
        if copy is not None and item is not copy:
            rates.append(f"{item.bytes_per_second / copy.bytes_per_second:4.2f} of a copy")
    if item.flops:
        rates.append(f"{item.flops_per_second / 1e12:6.2f} TFLOP/s")
    spread = f"p20 {item.p20_ms:9.3f}  p50 {item.median_ms:9.3f}  p80 {item.p80_ms:9.3f} ms"
    return f"{item.op:<18} {item.shape:<16} {item.impl:<6} {spread}  {'  '.join(rates)}".rstrip()


def copy_row(where: torch.device) -> Row:
    """What this device copies, as the yardstick of the others."""
    import torch

    size = COPIED[where.type]
    source = torch.randint(256, (size,), dtype=torch.uint8, device=where)  # zeros may move faster
    target = torch.empty_like(source)
    times = _times_ms(lambda: target.copy_(source), where)
    return row("copy", f"{size >> 20}MiB", "torch", times, bytes_moved=2 * size)


def _times_ms(call: Callable[[], object], where: torch.device) -> list[float]:
    import torch

    out = []
    for _ in range(COPIES):
        start = time.perf_counter()
        call()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        out.append(1e3 * (time.perf_counter() - start))
    return out[2:]  # the first ones touch the pages
