"""An engine of this process for a command: loaded, started on a loop of its own, stopped at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ninfer_core import logs
from ninfer_core.api import OptionValues
from ninfer_core.plugins import Plugins

if TYPE_CHECKING:
    import asyncio

    from ninfer_core.engine.engine import LocalEngine

STOP_SECONDS = 10.0


class StageLine:
    """Progress of a load as one line of a terminal that erases itself; nothing when ``out`` is redirected."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shows = out.isatty()
        self._stage = ""
        self._percent = -1

    def stage(self, name: str) -> None:
        self._stage, self._percent = name, -1
        self._write(name)

    def advance(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 0
        if percent != self._percent:
            self._percent = percent
            self._write(f"{self._stage} {percent}%")

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self._shows:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()


@contextmanager
def local_engine(model: str, values: OptionValues, plugins: Plugins) -> Iterator[tuple[LocalEngine, asyncio.Runner]]:
    """The started engine and the runner whose loop its events arrive on. Raises StartupError when it cannot load."""

    def load(line: StageLine) -> LocalEngine:
        from ninfer_core.engine.load import load_engine

        return load_engine(model, values, plugins, line)

    engine = loaded(load, values)
    with running(engine) as runner:
        yield engine, runner


def loaded(load: Callable[[StageLine], LocalEngine], values: OptionValues) -> LocalEngine:
    """What ``load`` makes, its progress shown; StartupError when it cannot."""
    # a command's answer matters, not its events: they are heard from warnings up unless asked for
    level = values["log_level"] if "log_level" in values.given else "warning"
    logs.configure(level, values["log_colours"])
    line = StageLine(sys.stderr)
    try:
        return load(line)
    finally:
        line.clear()


@contextmanager
def running(engine: LocalEngine) -> Iterator[asyncio.Runner]:
    """Start a loaded engine; the runner whose loop its events arrive on. It is stopped at the end."""
    import asyncio

    with asyncio.Runner() as runner:
        engine.start(runner.get_loop())
        try:
            yield runner
        finally:
            engine.stop()
            engine.join(STOP_SECONDS)


def changed(values: OptionValues, **settings: object) -> OptionValues:
    """``values`` with some settings replaced, as if the operator had left them to the command."""
    return OptionValues({**values, **settings}, values.given, values.words)
