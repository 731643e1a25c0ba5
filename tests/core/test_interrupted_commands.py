"""Ctrl+C at any moment of a command's start: status 130 and not a word."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRESSED = """
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Press())
sys.argv = ["x", *{words!r}]
from ninfer_core.cli.entry import {command}
sys.exit({command}())
"""
COMMANDS = {"ninfer": ["plugins"], "serve": ["scripted:nothing.json", "--port", "0"]}


def pressed_at(module: str, command: str, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """A command that gets Ctrl+C when it is about to import ``module``."""
    code = PRESSED.format(module=module, command=command, words=COMMANDS[command], ignored=ignored)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.contract("stop.startup")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("module", ["ninfer_core.cli.main", "ninfer_core.errors", "pluggy", "ninfer_openai"])
def test_a_command_that_is_still_importing_ends_quietly(command, module):
    done = pressed_at(module, command)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_that_is_ignored_stays_ignored():
    done = pressed_at("pluggy", "ninfer", ignored=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scripted" in done.stdout


def test_a_caught_interrupt_is_the_usual_one_again_while_a_command_runs():
    code = (
        "import signal\nfrom ninfer_core.cli import entry, main\n"
        "entry._end_quietly()\n"
        "main.guarded(lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_both_commands_begin_where_interrupts_are_taken_care_of():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"ninfer": "ninfer_core.cli.entry:ninfer", "ninfer-serve": "ninfer_core.cli.entry:serve"}
