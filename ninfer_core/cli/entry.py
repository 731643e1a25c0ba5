"""Where both commands begin: a Ctrl+C that comes while they are still being imported ends them without a word.

Python's own handling would print where in the imports it was, a page of it. Nothing but the interpreter's own modules
is imported before that is taken care of; ``guarded`` gives Ctrl+C its usual meaning back once it can catch it.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def ninfer() -> int:
    """The command ``ninfer``; the exit status."""
    _end_quietly()
    from .main import main

    status = main()
    # what is left is the interpreter taking itself down
    _end_quietly()
    return status


def serve() -> int:
    """The command ``ninfer-serve``; the exit status."""
    _end_quietly()
    from .serve import main

    status = main()
    _end_quietly()
    return status


def usual_interrupts() -> None:
    """From now on Ctrl+C raises KeyboardInterrupt again; one that is ignored (``nohup``, ``&``) stays ignored."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_quietly() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)
