"""Claude Code in print mode: it reads a file through its own tool, and says what the model says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agents import claude_code

PLUGINS = "scripted,kv_bf16,anthropic"
CONTEXT = ("--max-context", "131072", "--kv-capacity", "131072", "--max-pending-requests", "8")
PROMPT = "Please read the note in note.txt and tell me the word."

pytestmark = pytest.mark.clients


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "note.txt"
    path.parent.mkdir()
    path.write_text("the word is PLUGH\n")
    return path


def script(note: Path) -> dict[str, Any]:
    read = f"<tool_call>\n<function=Read>\n<parameter=file_path>\n{note}\n</parameter>\n</function>\n</tool_call>"
    return {
        "replies": [
            {"match": "PLUGH", "text": "It says so.</think>\n\nThe word is PLUGH."},
            {"match": "read the note", "text": f"I read it.</think>\n\n{read}"},
        ],
        "default": {"text": "</think>\n\nOK."},
    }


@pytest.mark.parametrize("flags", [(), ("--strip-volatile-system", "--lenient-tools")], ids=["plain", "lenient"])
def test_it_reads_a_file_and_answers(tmp_path, note, serve_script, flags):
    with serve_script(script(note), PLUGINS, *CONTEXT, *flags) as address:
        done = claude_code(address, tmp_path, PROMPT)
    assert (done.returncode, done.stdout.strip()) == (0, "The word is PLUGH."), done.stderr


def test_it_understands_that_the_prompt_is_too_long(tmp_path, note, serve_script):
    with serve_script(script(note), PLUGINS, "--max-context", "8192") as address:
        done = claude_code(address, tmp_path, PROMPT)
    assert done.returncode == 1
    assert "Prompt is too long" in done.stdout + done.stderr
