"""A real and small model behind the agents: each says that its prompt does not fit, and stops."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import httpx
import pytest
from agents import Ask, claude_code, codex, qwen_code

PLUGINS = "llama,gguf,kv_bf16,openai,anthropic"
FLAGS = ("--model-id", "demo", "--lenient-tools", "--max-pending-requests", "8")
AGENTS = {
    "claude-code": claude_code,
    "codex": functools.partial(codex, model="demo"),
    "qwen-code-openai": functools.partial(qwen_code, model="demo", protocol="openai"),
    "qwen-code-anthropic": functools.partial(qwen_code, model="demo", protocol="anthropic"),
}
TOO_LONG = {
    "claude-code": "Prompt is too long",
    "codex": "ran out of room in the model's context window",
    "qwen-code-openai": "this server's context holds 1024",
    "qwen-code-anthropic": "this server's context holds 1024",
}

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def small(serve_model) -> Iterator[str]:
    with serve_model("demo", PLUGINS, *FLAGS, "--max-context", "1024") as address:
        yield address


def failures(address: str) -> float:
    lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ninfer:requests_failed_total"))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_says_that_its_prompt_is_too_long(small, tmp_path, agent):
    ask: Ask = AGENTS[agent]
    done = ask(small, tmp_path, "Say hello.")
    assert done.returncode != 0
    assert TOO_LONG[agent] in done.stdout + done.stderr
    assert failures(small) == 0
