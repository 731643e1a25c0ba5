"""``ninfer COMMAND ...``: find the command among what the plugins offer, run it, turn its end into an exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import ParamSpec

from ninfer_core import options
from ninfer_core.errors import StartupError
from ninfer_core.plugins import Plugins

from .entry import INTERRUPTED, usual_interrupts

P = ParamSpec("P")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``ninfer``; the exit status (0, 1, 130)."""
    return guarded(dispatch, sys.argv[1:] if argv is None else argv)


def guarded(fn: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
    """``fn(*args)`` as a process ends: a StartupError is one line on stderr and 1, ``--help`` is 0, Ctrl+C is 130.

    A reader of stdout that went away (``| head``) ends the command quietly; a stdout that is closed or full is one
    line.
    """
    # read when torch loads: threads that wait spinning take the cores from whoever they wait for, and beside one other
    # busy process a prompt then takes three times as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        usual_interrupts()
        if sys.stdout is None:
            raise StartupError("standard output is closed; redirect it to /dev/null to do without")
        status = fn(*args, **kwargs)
        sys.stdout.flush()
        return status
    except options.Shown as shown:
        with contextlib.suppress(BrokenPipeError):
            print(shown.text, flush=True)
        return 0
    except StartupError as error:
        print(f"ninfer: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit; give it somewhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        print(f"ninfer: the output cannot be written: {os.strerror(error.errno)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def dispatch(argv: Sequence[str]) -> int:
    """Run ``argv[0]`` with the rest. Raises UnknownChoice with the nearest command."""
    plugins = options.compose(argv)
    if not argv or argv[0] in ("--help", "-h", "help"):
        raise options.Shown(overview(plugins))
    if argv[0].startswith("-"):
        options.parse(argv, plugins, "COMMAND", usage="ninfer COMMAND [options]")
        raise options.Shown(overview(plugins))
    return int(plugins.choose(plugins.commands, argv[0]).run(argv[1:]))


def overview(plugins: Plugins) -> str:
    """The commands, one line each."""
    commands = sorted(plugins.commands, key=lambda command: command.name)
    width = max((len(command.name) for command in commands), default=0)
    lines = ["Usage: ninfer COMMAND [options]", "       ninfer-serve [MODEL] [options]", "", "Commands:"]
    lines += [f"  {command.name.ljust(width)}  {command.summary}" for command in commands]
    lines += ["", "ninfer COMMAND --help lists the options of one; ninfer-serve --help those of the server."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
