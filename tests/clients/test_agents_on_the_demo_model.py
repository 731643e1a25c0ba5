"""A real and weak model behind the agents: what it cannot hold is said clearly, what it says breaks nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import httpx
import pytest
from agents import Ask, claude_code, codex, qwen_code

PLUGINS = "llama,gguf,kv_bf16,openai,anthropic"
FLAGS = ("--model-id", "demo", "--lenient-tools", "--max-pending-requests", "8")
LIMIT = "16"  # tokens of an answer
AGENTS = {
    "claude-code": functools.partial(claude_code, environment={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": LIMIT}),
    "codex": functools.partial(codex, model="demo"),
    "qwen-code-openai": functools.partial(
        qwen_code, model="demo", protocol="openai", environment={"QWEN_CODE_MAX_OUTPUT_TOKENS": LIMIT}
    ),
    "qwen-code-anthropic": functools.partial(
        qwen_code, model="demo", protocol="anthropic", environment={"QWEN_CODE_MAX_OUTPUT_TOKENS": LIMIT}
    ),
}
TOO_LONG = {
    "claude-code": "Prompt is too long",
    "codex": "context",
    "qwen-code-openai": "this server's context holds 1024",
    "qwen-code-anthropic": "this server's context holds 1024",
}

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def small(serve_model) -> Iterator[str]:
    with serve_model("demo", PLUGINS, *FLAGS, "--max-context", "1024") as address:
        yield address


@pytest.fixture(scope="module")
def whole(serve_model) -> Iterator[str]:
    with serve_model("demo", PLUGINS, *FLAGS, "--default-max-tokens", LIMIT) as address:
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


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_takes_what_the_model_says_or_says_why_not(whole, tmp_path, agent):
    """Their instructions have around 8192 tokens, so that newer versions may not fit; both ends are in order."""
    ask: Ask = AGENTS[agent]
    done = ask(whole, tmp_path, "Say hello.")
    said = (done.stdout + done.stderr).lower()
    assert done.stdout.strip() if done.returncode == 0 else ("token" in said or "too long" in said), done.stderr
    assert failures(whole) == 0
