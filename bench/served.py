"""Servers and scripts for benchmarks: a process on a free port, ended with its block."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 20.0


class Served:
    """``ninfer-serve MODEL FLAGS`` in a process of its own, ready inside the block; RuntimeError when it cannot start.

    ``log`` is what it said so far, ``status`` how it ended.
    """

    def __init__(self, model: str, *flags: str) -> None:
        self._command = [sys.executable, "-m", "ninfer_core.cli.serve", model, "--host", HOST, "--port", "0", *flags]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.status: int | None = None

    def __enter__(self) -> Served:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=self._stderr)
        self.pid = self._process.pid
        try:
            self.port = self._ready()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self.status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()

    @property
    def log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _ready(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.running:
            found = re.search(r"API\s+http://127\.0\.0\.1:(\d+)/v1\s", self.log)
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.log}")


def write_script(folder: str | Path, script: dict[str, Any]) -> str:
    """A script as a MODEL."""
    path = Path(folder) / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    return f"scripted:{path}"
