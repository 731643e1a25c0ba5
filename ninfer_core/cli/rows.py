"""A measurement is a row of JSON: what, where, with which versions. ``bench/rows/*.jsonl`` keeps them."""

from __future__ import annotations

import os
import platform
import stat
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ninfer_core.errors import StartupError

if TYPE_CHECKING:
    import torch

ACCEPTED = "it takes a file of rows, or the name of a new one"
TAIL_BYTES = 1 << 20  # of a file, that hold its last row


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Times are of one call; rates are derived from ``tokens``, ``bytes_moved`` and ``flops``, never typed."""

    op: str  # "decode", "prefill", "quant_linear"
    shape: str  # "R1-P512-D64"
    impl: str  # "ninfer", "llama.cpp", "reference"
    median_ms: float
    p20_ms: float
    p80_ms: float
    p90_ms: float | None = None  # older rows lack it and ``max_ms``
    max_ms: float | None = None
    tokens: int = 0  # produced or read by one call
    bytes_moved: int = 0
    flops: int = 0
    device: str
    versions: dict[str, str]  # ninfer, its commit, python, torch, triton, CUDA
    note: str = ""
    command: str = ""
    measured: str  # local date and time

    @property
    def tokens_per_second(self) -> float:
        return self._per_second(self.tokens)

    @property
    def bytes_per_second(self) -> float:
        return self._per_second(self.bytes_moved)

    @property
    def flops_per_second(self) -> float:
        return self._per_second(self.flops)

    def _per_second(self, amount: int) -> float:
        return 1e3 * amount / self.median_ms if self.median_ms > 0 else 0.0


def row(
    op: str,
    shape: str,
    impl: str,
    times_ms: Sequence[float],
    *,
    tokens: int = 0,
    bytes_moved: int = 0,
    flops: int = 0,
    note: str = "",
) -> Row:
    """A row of these times, at least one, on this machine."""
    low, median, high = quantiles(times_ms)
    return Row(
        op=op,
        shape=shape,
        impl=impl,
        median_ms=median,
        p20_ms=low,
        p80_ms=high,
        p90_ms=p90(times_ms),
        max_ms=max(times_ms),
        tokens=tokens,
        bytes_moved=bytes_moved,
        flops=flops,
        device=device(),
        versions=versions(),
        note=note,
        measured=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile; of one value, that value three times."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return fifths[0], statistics.median(values), fifths[3]


def p90(values: Sequence[float]) -> float:
    """The 90th percentile, interpolated as the others."""
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=10, method="inclusive")[8]


class _Named(msgspec.Struct):
    """What every line of a file of rows has."""

    op: str


def check_out(path: Path) -> None:
    """StartupError unless ``--out path`` can have rows added to it; the file is made when missing.

    For before a measurement: afterwards its rows would be lost, and what else the file holds (the model itself) ruined.
    """
    try:
        if path.is_dir():
            raise StartupError(f"--out {str(path)!r} is a folder; {ACCEPTED}")
        if _special(path):
            raise StartupError(f"--out {str(path)!r} is no regular file; {ACCEPTED}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fits = _ends_in_a_row(file)
    except OSError as error:
        raise StartupError(f"--out {str(path)!r} cannot be written: {error.strerror}; {ACCEPTED}") from None
    if not fits:
        raise StartupError(f"--out {str(path)!r} holds something else: its last line is no row; {ACCEPTED}")


def _special(path: Path) -> bool:
    """A device, a socket, or a FIFO, whose opening would wait for its reader."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _ends_in_a_row(file: BinaryIO) -> bool:
    """Whether the last line is one, or there is none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    last = file.read().rstrip().rpartition(b"\n")[2]
    try:
        msgspec.json.decode(last, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return size == 0
    return True


def append(path: Path, rows: Sequence[msgspec.Struct]) -> None:
    """Add rows (``Row``, or a measurement's own) to a JSONL file, its folder made when missing. They begin on a line of
    their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.writelines(msgspec.json.encode(item) + b"\n" for item in rows)


def device(where: torch.device | None = None) -> str:
    """The GPU, or the processor and the threads torch uses; ``where`` None: the GPU if there is one."""
    import torch

    if torch.cuda.is_available() and (where is None or where.type == "cuda"):
        return torch.cuda.get_device_name(where)
    return f"{_processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads"


def versions() -> dict[str, str]:
    """What a result depends on."""
    import torch

    found = {name: metadata.version(name) for name in ("ninfer", "torch", "numpy")}
    found |= {"python": platform.python_version(), "commit": _commit()}
    if torch.cuda.is_available():
        found |= {"triton": metadata.version("triton"), "cuda": str(torch.version.cuda)}
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _commit() -> str:
    """``NINFER_BUILD_ID``, as the server's version has it, else git's description."""
    if build_id := os.environ.get("NINFER_BUILD_ID"):
        return build_id
    here = Path(__file__).resolve().parent
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
