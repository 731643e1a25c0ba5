"""Claude Code in print mode: it reads a file through its own tool, and says what the model says of it.

``make clients`` installs it; its Linux package holds the whole program.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).resolve().parents[2] / ".venv" / "clients" / "node_modules" / "@anthropic-ai"
PLUGINS = "scripted,kv_bf16,anthropic"
CONTEXT = ("--max-context", "131072", "--kv-capacity", "131072", "--max-pending-requests", "8")
SECONDS = 240

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def program() -> str:
    found = sorted(PACKAGES.glob("claude-code-*/claude"))
    if not found:
        pytest.skip("Claude Code is not installed; see `make clients`")
    return str(found[0])


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "note.txt"
    path.parent.mkdir()
    path.write_text("the word is PLUGH\n")
    return path


def ask(program: str, address: str, note: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(note.parents[1]),
        "ANTHROPIC_BASE_URL": f"http://{address}",
        "ANTHROPIC_API_KEY": "dummy",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = [program, "-p", "Please read the note in note.txt and tell me the word.", *more]
    return subprocess.run(
        command,
        cwd=note.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


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
def test_it_reads_a_file_and_answers(program, note, serve_script, flags):
    with serve_script(script(note), PLUGINS, *CONTEXT, *flags) as address:
        done = ask(program, address, note)
    assert (done.returncode, done.stdout.strip()) == (0, "The word is PLUGH."), done.stderr


def test_it_understands_that_the_prompt_is_too_long(program, note, serve_script):
    with serve_script(script(note), PLUGINS, "--max-context", "8192") as address:
        done = ask(program, address, note)
    assert done.returncode == 1
    assert "Prompt is too long" in done.stdout + done.stderr
