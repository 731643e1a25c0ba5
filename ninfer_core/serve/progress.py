"""How a start shows what it is doing: bars on a terminal, plain log lines where stderr is redirected."""

from __future__ import annotations

import io
import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

import structlog

log = structlog.get_logger()

LINE_SECONDS = 5.0  # between two plain lines of one stage


class StartupProgress(Protocol):
    """An ``engine.progress.Progress`` that is opened and closed by the event loop's thread."""

    def stage(self, name: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def startup_progress(out: TextIO | None = None) -> StartupProgress:
    """Bars when ``out`` (stderr) is a terminal, else lines."""
    stream = out if out is not None else sys.stderr
    return Bars(stream) if stream.isatty() else Lines()


class CurrentStderr(io.TextIOBase):
    """Whatever ``sys.stderr`` is at the moment of a write: while bars are drawn, rich puts a proxy there that prints
    lines above them. A log that kept the stream it was set up with would write into a bar."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


class Lines:
    """One log line per stage, and one every few seconds of a long one."""

    def __init__(self) -> None:
        self._name = ""
        self._spoke = 0.0

    def stage(self, name: str) -> None:
        self._name, self._spoke = name, time.monotonic()
        log.info("startup", stage=name)

    def advance(self, done: int, total: int) -> None:
        now = time.monotonic()
        if total > 0 and now - self._spoke >= LINE_SECONDS:
            self._spoke = now
            log.info("startup", stage=self._name, percent=round(100 * done / total))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Bars:
    """One transient bar per stage; a stage that is over leaves a tick and its seconds."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=Console(file=out), transient=True)
        self._task = self._bars.add_task("starting", total=None)
        self._name, self._began = "", time.monotonic()

    def stage(self, name: str) -> None:
        self._leave_tick()
        self._name, self._began = name, time.monotonic()
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=None)

    def advance(self, done: int, total: int) -> None:
        self._bars.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave_tick()
        self._bars.stop()

    def _leave_tick(self) -> None:
        if self._name:
            self._bars.console.print(f"  done  {self._name} ({time.monotonic() - self._began:.1f} s)", highlight=False)
            self._name = ""
