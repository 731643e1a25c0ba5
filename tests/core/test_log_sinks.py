"""Log sinks lose lines before they lose anything else."""

import io
import threading

import structlog

from ninfer_core import logs
from ninfer_core.log_sinks import ForgivingSink, ThreadedSink


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


class Stuck(io.StringIO):
    """A pipe nobody reads: the first write does not come back until it is let go."""

    def __init__(self):
        super().__init__()
        self.held, self.go = threading.Event(), threading.Event()

    def write(self, text):
        self.held.set()
        self.go.wait(30)
        return super().write(text)


def test_a_stream_that_cannot_be_written_loses_its_lines_and_nothing_else():
    closed = io.StringIO()
    closed.close()
    for out in (Full(), closed, None):
        sink = ForgivingSink(out)
        sink.write("line\n")
        sink.flush()
        assert not sink.isatty()


def test_events_survive_a_full_disk():
    logs.configure("info", False, Full())
    structlog.get_logger().info("request_done", id=1)


def test_a_reader_that_stops_reading_stops_nobody():
    out = Stuck()
    sink = ThreadedSink(out, bound=10)
    sink.write("first\n")
    assert out.held.wait(10)
    for i in range(15):
        sink.write(f"{i}\n")
    sink.drain(0.01)  # bounded: nothing is written yet
    out.go.set()
    sink.drain(10)
    text = out.getvalue()
    assert text.startswith("first\n0\n1\n")
    assert "9\n" in text
    assert "\n10\n" not in text
    assert "5 log lines were dropped" in text


def test_lines_keep_their_order():
    out = io.StringIO()
    sink = ThreadedSink(out)
    for i in range(200):
        sink.write(f"{i}\n")
    sink.drain(10)
    assert out.getvalue() == "".join(f"{i}\n" for i in range(200))
