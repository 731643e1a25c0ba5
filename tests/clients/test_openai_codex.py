"""Codex without a terminal: it runs a command through its own shell tool, and says what the model says of it."""

from __future__ import annotations

import pytest
from agents import codex

PLUGINS = "scripted,kv_bf16,openai"
CONTEXT = ("--max-context", "131072", "--kv-capacity", "131072", "--max-pending-requests", "8")
PROMPT = "Please run the command and tell me the word."
COMMAND = 'echo the-word-is-"PLUGH"'
CALL = f"<tool_call>\n<function=exec_command>\n<parameter=cmd>\n{COMMAND}\n</parameter>\n</function>\n</tool_call>"
SCRIPT = {
    "replies": [
        {"match": "the-word-is-PLUGH", "text": "It printed it.</think>\n\nThe word is PLUGH."},
        {"match": "run the command", "text": f"I run it.</think>\n\nRunning it.{CALL}"},
    ],
    "default": {"text": "</think>\n\nOK."},
}

pytestmark = pytest.mark.clients


@pytest.mark.parametrize(
    ("flags", "setting"),
    [((), 'web_search = "disabled"\nmodel_context_window = 131072'), (("--lenient-tools",), "")],
    ids=["as-in-the-readme", "lenient"],
)
def test_it_runs_a_command_and_answers(tmp_path, serve_script, flags, setting):
    with serve_script(SCRIPT, PLUGINS, *CONTEXT, *flags) as address:
        done = codex(address, tmp_path, PROMPT, settings=setting)
    assert (done.returncode, done.stdout.strip()) == (0, "The word is PLUGH."), done.stderr
    assert "succeeded" in done.stderr


def test_a_hosted_tool_is_refused_by_name(tmp_path, serve_script):
    with serve_script(SCRIPT, PLUGINS, *CONTEXT) as address:
        done = codex(address, tmp_path, PROMPT, settings='web_search = "live"')
    assert done.returncode != 0
    assert "web_search" in done.stderr and "tool_type_not_supported" in done.stderr


def test_it_shows_that_the_prompt_is_too_long(tmp_path, serve_script):
    with serve_script(SCRIPT, PLUGINS, "--max-context", "8192") as address:
        done = codex(address, tmp_path, PROMPT, settings='web_search = "disabled"')
    assert done.returncode != 0
    assert "ran out of room in the model's context window" in done.stderr, done.stderr
