"""Coding agents from the npm registry, each run once without a terminal; ``make clients`` installs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

MODULES = Path(__file__).resolve().parents[2] / ".venv" / "clients" / "node_modules"
SECONDS = 240
CODEX = """
model = "{model}"
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

Done = subprocess.CompletedProcess[str]
Ask = Callable[..., Done]


def claude_code(address: str, home: Path, prompt: str, *more: str, environment: dict[str, str] | None = None) -> Done:
    """Its Linux package holds the whole program."""
    found = sorted((MODULES / "@anthropic-ai").glob("claude-code-*/claude"))
    if not found:
        pytest.skip("Claude Code is not installed; see `make clients`")
    settings = {
        "ANTHROPIC_BASE_URL": f"http://{address}",
        "ANTHROPIC_API_KEY": "dummy",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return _run([str(found[0]), "-p", *more, "--", prompt], home, {**settings, **(environment or {})})


def codex(address: str, home: Path, prompt: str, *, model: str = "scripted", settings: str = "") -> Done:
    """``settings``: further lines of its config.toml."""
    program = _script("codex")
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CODEX.format(address=address, model=model, more=settings), encoding="utf-8")
    return _run([*program, "exec", "--skip-git-repo-check", prompt], home, {"CODEX_HOME": str(home)})


def qwen_code(
    address: str,
    home: Path,
    prompt: str,
    *more: str,
    model: str = "scripted",
    protocol: str = "openai",
    settings: object = None,
    environment: dict[str, str] | None = None,
) -> Done:
    """``settings``: its settings.json, which then names the server; otherwise its environment does."""
    program = _script("qwen")
    base = f"http://{address}/v1" if protocol == "openai" else f"http://{address}"
    names = {"BASE_URL": base, "API_KEY": "none", "MODEL": model}
    named = {f"{protocol.upper()}_{name}": value for name, value in names.items()}
    if settings is not None:
        named = {}
        (home / ".qwen").mkdir(parents=True)
        (home / ".qwen" / "settings.json").write_bytes(msgspec.json.encode(settings))
    else:
        more = ("--auth-type", protocol, *more)
    return _run([*program, *more, prompt], home, {**named, **(environment or {})})


def _script(name: str) -> list[str]:
    """A program that Node.js runs."""
    node, program = shutil.which("node"), MODULES / ".bin" / name
    if node is None or not program.exists():
        pytest.skip(f"{name} is not installed; see `make clients`")
    return [node, str(program.resolve())]


def _run(command: list[str], home: Path, environment: dict[str, str]) -> Done:
    """In the folder ``work`` of a home of its own; nothing of the user's settings is seen."""
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        command,
        cwd=work,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
