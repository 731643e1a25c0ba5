"""``ninfer-serve [MODEL] [options]``: the HTTP server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO, cast

from ninfer_core import logs, options
from ninfer_core.demo import resolve
from ninfer_core.log_sinks import ThreadedSink

from .main import guarded

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine
    from ninfer_core.engine.progress import Progress

USAGE = "ninfer-serve [MODEL] [options]"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``ninfer-serve``; the exit status (0, 1, 2, 130)."""
    return guarded(run, sys.argv[1:] if argv is None else argv)


def run(argv: Sequence[str]) -> int:
    """Parse, bind, load, serve. MODEL may be missing: the demo model."""
    plugins = options.compose(argv)
    positionals, values = options.parse(argv, plugins, "serve", usage=USAGE)
    found = options.exactly(positionals, "ninfer-serve", "[MODEL]")
    from ninfer_core.serve.progress import CurrentStderr
    from ninfer_core.serve.run import serve
    from ninfer_core.weights.checkpoint import check_path

    model = resolve(found[0] if found else None)
    # a model that is not there is one line, before a port is taken
    check_path(model, plugins)
    sink = ThreadedSink(CurrentStderr())
    logs.configure(values["log_level"], values["log_colours"], cast(TextIO, sink))

    def load(progress: Progress) -> LocalEngine:
        # torch loads here, behind the bound port
        progress.stage("loading torch")
        from ninfer_core.engine.load import load_engine

        return load_engine(model, values, plugins, progress)

    return serve(values, plugins, load, drain=sink.drain)


if __name__ == "__main__":
    sys.exit(main())
