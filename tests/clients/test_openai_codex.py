"""Codex without a terminal: it runs a command through its own shell tool, and says what the model says of it.

``make clients`` installs it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / ".venv" / "clients" / "node_modules" / ".bin" / "codex"
PLUGINS = "scripted,kv_bf16,openai"
CONTEXT = ("--max-context", "131072", "--kv-capacity", "131072", "--max-pending-requests", "8")
SECONDS = 240
COMMAND = 'echo the-word-is-"PLUGH"'
CALL = f"<tool_call>\n<function=exec_command>\n<parameter=cmd>\n{COMMAND}\n</parameter>\n</function>\n</tool_call>"
SCRIPT = {
    "replies": [
        {"match": "the-word-is-PLUGH", "text": "It printed it.</think>\n\nThe word is PLUGH."},
        {"match": "run the command", "text": f"I run it.</think>\n\nRunning it.{CALL}"},
    ],
    "default": {"text": "</think>\n\nOK."},
}
CONFIG = """
model = "scripted"
model_provider = "ninfer"
approval_policy = "never"
sandbox_mode = "danger-full-access"
{more}
[model_providers.ninfer]
name = "ninfer"
base_url = "http://{address}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 3600000
"""

pytestmark = pytest.mark.clients


def ask(address: str, home: Path, more: str) -> subprocess.CompletedProcess[str]:
    node = shutil.which("node")
    if node is None or not PROGRAM.exists():
        pytest.skip("Codex is not installed; see `make clients`")
    work = home / "work"
    work.mkdir()
    (home / "config.toml").write_text(CONFIG.format(address=address, more=more), encoding="utf-8")
    return subprocess.run(
        [node, str(PROGRAM.resolve()), "exec", "--skip-git-repo-check", "Please run the command and tell me the word."],
        cwd=work,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "CODEX_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "setting"),
    [((), 'web_search = "disabled"'), (("--lenient-tools",), "")],
    ids=["without-web-search", "lenient"],
)
def test_it_runs_a_command_and_answers(tmp_path, serve_script, flags, setting):
    with serve_script(SCRIPT, PLUGINS, *CONTEXT, *flags) as address:
        done = ask(address, tmp_path, setting)
    assert (done.returncode, done.stdout.strip()) == (0, "The word is PLUGH."), done.stderr
    assert "succeeded" in done.stderr


def test_a_hosted_tool_is_refused_by_name(tmp_path, serve_script):
    with serve_script(SCRIPT, PLUGINS, *CONTEXT) as address:
        done = ask(address, tmp_path, 'web_search = "live"')
    assert done.returncode != 0
    assert "web_search" in done.stderr and "tool_type_not_supported" in done.stderr
