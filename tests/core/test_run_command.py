"""``ninfer run`` and ``ninfer bench`` on the scripted family: the whole engine, no server."""

from __future__ import annotations

import io
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from ninfer_core.cli.main import main
from ninfer_core.cli.show import Screen

REPLIES = [
    {"match": "second", "text": "</think>\n\nTwo."},
    {"match": "slow", "text": "</think>\n\n" + "la " * 400, "delay_ms": 20},
    {"match": "once", "text": " upon a time"},
    {"match": "escape", "text": "</think>\n\n\x1b]0;owned\x07done"},
    {"match": "fault", "text": "</think>\n\nabcdefgh", "fail_at": 4},
]
SCRIPT = {"name": "toy", "replies": REPLIES, "default": {"text": "Hm.\n</think>\n\nOne."}}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "script.json"
    path.write_bytes(msgspec.json.encode(SCRIPT))
    return f"scripted:{path}"


@pytest.fixture
def call(capsys) -> Iterator:
    """Run a command in this process: status, stdout, stderr. The process's logging is put back."""
    root = logging.getLogger()
    before = root.handlers, root.level

    def call(*argv: str) -> tuple[int, str, str]:
        status = main(argv)
        out, err = capsys.readouterr()
        return status, out, err

    yield call
    structlog.reset_defaults()
    root.handlers, root.level = before


def test_a_redirected_answer_is_the_content_alone(call, model):
    assert call("run", model, "hello") == (0, "One.\n", "")


def test_stdin_is_the_prompt_when_it_is_no_terminal(call, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the second, please"))
    assert call("run", model) == (0, "Two.\n", "")


def test_json_is_one_object_with_the_whole_result(call, model):
    status, out, _ = call("run", model, "hello", "--json", "--seed", "7")
    told = msgspec.json.decode(out)
    assert status == 0
    assert (told["model"], told["content"], told["reasoning"]) == ("toy", "One.", "Hm.")
    assert told["finish_reason"] == "stop_token"
    assert told["seed"] == 7
    assert told["completion_tokens"] >= told["reasoning_tokens"] > 0
    assert told["timings"]["prompt_n"] == told["prompt_tokens"]


def test_a_raw_prompt_is_gone_on_with(call, model):
    status, out, _ = call("run", model, "once", "--raw")
    assert (status, out) == (0, " upon a time\n")


def test_the_system_message_is_part_of_the_prompt(call, model):
    plain = msgspec.json.decode(call("run", model, "hello", "--json")[1])
    told = msgspec.json.decode(call("run", model, "hello", "--json", "--system", "Be brief.")[1])
    assert told["prompt_tokens"] >= plain["prompt_tokens"] + len("Be brief.")


def test_stats_go_to_stderr(call, model):
    _, out, err = call("run", model, "hello", "--stats")
    assert out == "One.\n"
    assert "prompt tokens (0 cached)" in err
    assert err.rstrip().endswith("ended by stop_token")


def test_the_output_limit_of_the_line_holds(call, model):
    told = msgspec.json.decode(call("run", model, "hello", "--json", "--default-max-tokens", "3")[1])
    assert (told["completion_tokens"], told["finish_reason"]) == (3, "output_limit")


def test_a_prompt_beyond_the_context_is_one_line(call, model):
    status, out, err = call("run", model, "x" * 300, "--max-context", "128")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "128" in err


def test_an_engine_that_fails_is_status_two(call, model):
    status, _, err = call("run", model, "fault", "--log-level", "off")
    assert status == 2
    assert err.splitlines()[-1] == "ninfer: the engine failed (RuntimeError)"


def test_bench_prints_a_row_for_prefill_and_one_for_decode(call, model):
    status, out, err = call(
        "bench", model, "--rows", "1,2", "--prompt-tokens", "70", "--decode-tokens", "8", "--repeats", "2"
    )
    rows = [msgspec.json.decode(line) for line in out.splitlines()]
    assert status == 0
    assert [(row["op"], row["shape"]) for row in rows] == [
        (op, f"R{count}-P70-D8") for count in (1, 2) for op in ("prefill", "decode")
    ]
    assert [row["tokens"] for row in rows if row["op"] == "prefill"] == [70, 140]
    assert all(0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"] for row in rows)
    assert all(row["note"] == "toy-kv-bf16" and row["versions"]["ninfer"] for row in rows)
    assert all(row["command"].endswith("--decode-tokens 8 --rows 1,2 --repeats 2") for row in rows)
    assert err.count("tokens/s") == 4


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self.ours, theirs = pty.openpty()
        code = "import sys; from ninfer_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"},
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.ours, text.encode())

    def interrupt_until(self, text: str) -> str:
        """Ctrl+C, again where it came between the prompt and the read that it has to interrupt."""
        for _ in range(20):
            self.process.send_signal(signal.SIGINT)
            try:
                return self.until(text, seconds=3)
            except AssertionError:
                continue
        raise AssertionError(f"{text!r} never came; seen: {self.seen!r}")

    def until(self, text: str, seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{text!r} never came; seen: {self.seen!r}"
            try:
                self.seen += os.read(self.ours, 4096).decode("utf-8", "replace")
            except OSError:  # the other side closed
                assert text in self.seen, self.seen
        return self.seen


@pytest.fixture(scope="module")
def chat(model) -> Iterator[Terminal]:
    """One chat for the tests below; each leaves it at its prompt."""
    started = Terminal("run", model)
    started.until("> ")
    yield started
    started.type("\x04")
    status = started.process.wait(timeout=60)
    os.close(started.ours)
    assert status == 0, "the end of input ends a chat well"


def test_a_chat_answers_turn_after_turn_with_the_reasoning_dimmed_above(chat):
    chat.type("hello\n")
    assert "\x1b[2mHm.\x1b[0m\r\n\r\nOne.\r\n" in chat.until("\n> ")
    chat.type("the second\n")
    assert "Two.\r\n" in chat.until("\n> ")


def test_ctrl_c_stops_the_answer_and_not_the_chat(chat):
    chat.type("a slow one\n")
    chat.until("la la la")
    chat.process.send_signal(signal.SIGINT)
    chat.until("[stopped]\r\n> ")
    chat.type("the second\n")
    assert "Two.\r\n" in chat.until("\n> ")
    chat.interrupt_until("(Ctrl+D ends the chat)\r\n> ")


def test_a_model_cannot_drive_the_terminal(chat):
    chat.type("escape\n")
    shown = chat.until("done\r\n> ")
    assert "\x1b]0;" not in shown
    assert "\ufffd]0;owned\ufffddone" in shown


def test_ctrl_c_ends_a_single_generation(model):
    one = Terminal("run", model, "a slow one")
    one.until("la la la")
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(timeout=60) == 130
    os.close(one.ours)


class Out(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_a_screen_keeps_what_was_said_byte_for_byte():
    for terminal in (True, False):
        screen = Screen(Out(terminal))
        for piece in ("a\x1b[2J", "\n", "é"):
            screen.write("content", piece)
        assert screen.said("content") == "a\x1b[2J\né"


def test_a_redirected_screen_gets_every_byte_of_the_content():
    out = Out(False)
    screen = Screen(out)
    screen.write("reasoning", "hidden")
    screen.write("content", "a\x1b[2J")
    screen.end()
    assert out.getvalue() == "a\x1b[2J\n"
