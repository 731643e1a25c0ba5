"""The console log: one event with fields per line, on stderr.

``YYYY-MM-DD HH:MM:SS.mmm LEVEL event key=value``, local time. A value with a blank or a control character is quoted, so
one event is always one line; only a traceback adds lines. Records of libraries (``logging``) read the same.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO, cast

from ninfer_core.api import Option, boolean, choice
from ninfer_core.log_sinks import ForgivingSink

FLOORS = {
    "trace": logging.NOTSET,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL,  # and every event is dropped
}
LEVELS = tuple(FLOORS)

OPTIONS = (
    Option(
        flag="--log-level",
        metavar="LEVEL",
        parse=choice(*LEVELS),
        default="info",
        help=f"least severe event of the console log: {', '.join(LEVELS)}; trace adds what libraries report",
    ),
    Option(
        flag="--log-colours",
        metavar="on|off",
        parse=boolean,
        default=True,
        help="colour the levels of the console log; a redirected stderr is always plain",
    ),
)

COLOURS = {"debug": "36", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}  # ansi codes
PLAIN = re.compile(r"[\w.,:;/+@%#()\[\]{}<>*?!&~^$-]+")
Fields = MutableMapping[str, Any]


def configure(level: str = "info", colours: bool = True, stream: TextIO | None = None) -> None:
    """Set up structlog and ``logging`` for this process; ``stream`` is stderr unless named. A stream that fails loses
    its lines and nothing else."""
    import structlog

    out = cast(TextIO, ForgivingSink(stream if stream is not None else sys.stderr))
    render = renderer(colours and out.isatty())
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        render,
    ]
    floor = FLOORS[level]
    structlog.configure(
        processors=[_drop] if level == "off" else processors,
        wrapper_class=structlog.make_filtering_bound_logger(floor),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [logging.NullHandler() if level == "off" else _Library(render, out)]
    # libraries are heard from warnings up: their own progress reports are noise beside the events of the server
    root.setLevel(logging.NOTSET if level == "trace" else max(floor, logging.WARNING))


def renderer(colours: bool) -> Callable[[Any, str, Fields], str]:
    """A structlog processor that turns an event into its line."""

    def render(_logger: Any, method: str, event: Fields) -> str:
        fields = dict(event)
        level = str(fields.pop("level", method))
        name = _value(fields.pop("event", ""))
        trace = fields.pop("exception", None)
        shown = (
            f"\x1b[{COLOURS[level]}m{level.upper():<8}\x1b[0m"
            if colours and level in COLOURS
            else f"{level.upper():<8}"
        )
        parts = [_now(), shown, name, *(f"{key}={_value(value)}" for key, value in fields.items())]
        return " ".join(parts) + (f"\n{trace}" if trace else "")

    return render


def _now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if PLAIN.fullmatch(text) else repr(text)


def _drop(_logger: Any, _method: str, _event: Fields) -> Fields:
    import structlog

    raise structlog.DropEvent


class _Library(logging.Handler):
    """Writes a record of ``logging`` as an event named ``library`` with the logger's name and message."""

    def __init__(self, render: Callable[[Any, str, Fields], str], out: TextIO) -> None:
        super().__init__()
        self._render, self._out = render, out

    def emit(self, record: logging.LogRecord) -> None:
        fields: Fields = {"event": "library", "level": record.levelname.lower(), "logger": record.name}
        try:
            fields["message"] = record.getMessage()
            if record.exc_info:
                fields["exception"] = logging.Formatter().formatException(record.exc_info)
            self._out.write(self._render(None, "", fields) + "\n")
            self._out.flush()
        except Exception:
            self.handleError(record)
