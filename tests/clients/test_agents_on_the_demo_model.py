"""A real and small model behind the agents: each shows its answer, or says that its prompt does not fit."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agents import Ask, Done, claude_code, codex, qwen_code

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

BRIEF = ("--system-prompt", "You are a helpful assistant. Be brief.")
LIMIT = 400  # tokens: a model this small may not come to an end by itself


def qwen_code_with_a_limit(address: str, home: Path, prompt: str, *, protocol: str) -> Done:
    model = {
        "id": "demo",
        "baseUrl": f"http://{address}/v1" if protocol == "openai" else f"http://{address}",
        "envKey": "NINFER_KEY",
        "generationConfig": {"timeout": 3600000, "samplingParams": {"max_tokens": LIMIT}},
    }
    settings = {
        "security": {"auth": {"selectedType": protocol}},
        "env": {"NINFER_KEY": "none"},
        "modelProviders": {protocol: [model]},
        "model": {"name": "demo"},
    }
    return qwen_code(address, home, prompt, *BRIEF, settings=settings)


def claude_code_with_a_limit(address: str, home: Path, prompt: str) -> Done:
    limit = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(LIMIT)}
    return claude_code(address, home, prompt, *BRIEF, "--tools", "", environment=limit)


ANSWERING = {
    "claude-code": claude_code_with_a_limit,
    "codex": AGENTS["codex"],
    "qwen-code-openai": functools.partial(qwen_code_with_a_limit, protocol="openai"),
    "qwen-code-anthropic": functools.partial(qwen_code_with_a_limit, protocol="anthropic"),
}

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def small(serve_model) -> Iterator[str]:
    with serve_model("demo", PLUGINS, *FLAGS, "--max-context", "1024") as address:
        yield address


@pytest.fixture(scope="module")
def whole(serve_model) -> Iterator[str]:
    with serve_model("demo", PLUGINS, *FLAGS, "--default-max-tokens", str(LIMIT)) as address:
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


@pytest.mark.parametrize("agent", ANSWERING)
def test_an_agent_shows_what_the_model_says(whole, tmp_path, agent):
    ask: Ask = ANSWERING[agent]
    done = ask(whole, tmp_path, "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert failures(whole) == 0
