"""The console log: one event, one line, whatever it holds."""

from __future__ import annotations

import io
import logging
import re

import pytest
import structlog

from ninfer_core import logs

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ([A-Z]+) +(.*)")


@pytest.fixture
def configured():
    """``configure`` with a stream of its own; the process's logging is put back afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level

    def configure(level: str = "info", *, terminal: bool = False, colours: bool = True) -> io.StringIO:
        out = io.StringIO()
        out.isatty = lambda: terminal  # type: ignore[method-assign]
        logs.configure(level, colours, out)
        return out

    yield configure
    structlog.reset_defaults()
    root.handlers, root.level = before


def test_an_event_is_a_line_with_time_level_name_and_fields(configured):
    out = configured()
    structlog.get_logger().info("request_done", prompt_tokens=1602, ttft_seconds=0.0263333, finish_reason="stop")
    level, rest = LINE.fullmatch(out.getvalue().rstrip("\n")).groups()
    assert level == "INFO"
    assert rest == "request_done prompt_tokens=1602 ttft_seconds=0.0263333 finish_reason=stop"


@pytest.mark.parametrize("value", ["two words", "a\nb", "\x1b[2J", "\u202e", "", "\ud800", 'say "x"', "a\u2028b"])
def test_a_value_cannot_break_the_line_or_the_terminal(configured, value):
    out = configured()
    structlog.get_logger().info("x", id=value)
    (line,) = out.getvalue().splitlines()
    assert line.endswith(f"x id={value!r}")
    assert "\x1b" not in line


def test_a_bound_request_is_on_every_line(configured):
    out = configured()
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        structlog.get_logger().info("one")
        structlog.get_logger().warning("two")
    structlog.get_logger().info("three")
    assert ["request_id=req_1" in line for line in out.getvalue().splitlines()] == [True, True, False]


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("trace", "debug info warning error critical"),
        ("debug", "debug info warning error critical"),
        ("info", "info warning error critical"),
        ("warning", "warning error critical"),
        ("error", "error critical"),
        ("critical", "critical"),
        ("off", ""),
    ],
)
def test_a_level_lets_through_itself_and_what_is_worse(configured, level, heard):
    out = configured(level)
    for name in ("debug", "info", "warning", "error", "critical"):
        getattr(structlog.get_logger(), name)(name)
    assert [line.split()[-1] for line in out.getvalue().splitlines()] == heard.split()


def test_libraries_are_heard_from_warnings_up_and_entirely_at_trace(configured):
    for level, heard in (("info", ["careful"]), ("trace", ["hello", "careful"]), ("error", []), ("off", [])):
        out = configured(level)
        logging.getLogger("some.library").info("hello")
        logging.getLogger("some.library").warning("%s", "careful")
        lines = out.getvalue().splitlines()
        assert [line.split("message=")[1] for line in lines] == heard
        assert all("library logger=some.library" in line for line in lines)


def test_colours_are_for_terminals(configured):
    for terminal, colours, coloured in ((True, True, True), (True, False, False), (False, True, False)):
        out = configured(terminal=terminal, colours=colours)
        structlog.get_logger().error("x")
        assert ("\x1b[" in out.getvalue()) is coloured


def test_a_traceback_follows_its_line(configured):
    out = configured()
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("request_failed", status=500)
    first, second, *_ = out.getvalue().splitlines()
    assert first.endswith("request_failed status=500")
    assert second == "Traceback (most recent call last):"
