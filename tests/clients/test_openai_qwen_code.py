"""Qwen Code without a terminal: it reads a file through its own tool, and says what the model says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents import qwen_code

PLUGINS = "scripted,kv_bf16,openai,anthropic"
CONTEXT = ("--max-context", "131072", "--kv-capacity", "131072", "--max-pending-requests", "8")
PROMPT = "Please read the note in note.txt and tell me the word."
SCHEMA = '{"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}'
CALL = "<tool_call>\n<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>"
NEXT = CALL % ("respond_in_schema", "next_speaker", "%s\n</parameter>\n<parameter=reasoning>\nSo it is.")

pytestmark = pytest.mark.clients


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "note.txt"
    path.parent.mkdir()
    path.write_text("the word is PLUGH\n")
    return path


def script(note: Path, *first: Any, thought: str = "I think so.</think>\n\n") -> dict[str, Any]:
    """``first``: replies that come before the two that every conversation has."""
    return {
        "replies": [
            *first,
            {"match": "PLUGH", "text": f"{thought}The word is PLUGH."},
            {"match": "read the note", "text": f"{thought}Reading.\n\n{CALL % ('read_file', 'file_path', note)}"},
        ],
        "default": {"text": f"{thought}OK."},
    }


def settings(address: str, **generation: Any) -> dict[str, Any]:
    """As README.md has them."""
    model = {
        "id": "scripted",
        "baseUrl": f"http://{address}/v1",
        "envKey": "NINFER_KEY",
        "generationConfig": {"contextWindowSize": 131072, "timeout": 3600000, **generation},
    }
    return {
        "security": {"auth": {"selectedType": "openai"}},
        "env": {"NINFER_KEY": "none"},
        "modelProviders": {"openai": [model]},
        "model": {"name": "scripted"},
    }


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_it_reads_a_file_and_answers(tmp_path, note, serve_script, protocol):
    with serve_script(script(note), PLUGINS, *CONTEXT) as address:
        done = qwen_code(address, tmp_path, PROMPT, protocol=protocol)
    assert (done.returncode, done.stdout.strip()) == (0, "The word is PLUGH."), done.stderr


def test_the_settings_of_the_readme_reach_the_server(tmp_path, note, serve_script):
    # the budget would cut the reasoning, and does: what follows it is the answer all the same
    long = "I think. " * 20 + "</think>\n\n"
    more = {"samplingParams": {"max_tokens": 4000}, "extra_body": {"thinking_budget": 40}}
    with serve_script(script(note, thought=long), PLUGINS, *CONTEXT) as address:
        written = settings(address, **more)
        done = qwen_code(address, tmp_path, PROMPT, "--output-format", "json", settings=written)
    events = msgspec.json.decode(done.stdout)
    assert (done.returncode, events[-1]["result"]) == (0, "The word is PLUGH."), done.stderr
    thoughts = [
        block["thinking"]
        for event in events
        if event["type"] == "assistant"
        for block in event["message"]["content"]
        if block["type"] == "thinking"
    ]
    assert thoughts and not any("I think. " * 10 in thought for thought in thoughts)


def test_an_answer_in_a_schema_is_a_call_to_its_own_tool(tmp_path, note, serve_script):
    final = {"match": "PLUGH", "text": f"I see.</think>\n\n{CALL % ('structured_output', 'word', 'PLUGH')}"}
    with serve_script(script(note, final), PLUGINS, *CONTEXT) as address:
        done = qwen_code(address, tmp_path, PROMPT, "--json-schema", SCHEMA)
    assert (done.returncode, done.stdout.strip()) == (0, '{"word":"PLUGH"}'), done.stderr


def test_it_asks_aside_in_json_who_speaks_next(tmp_path, note, serve_script):
    """One tool, which newer versions force: the answer to it sends the model on."""
    first = [
        {"match": "immediately preceding response", "by_turn": [""] * 3 + [NEXT % "model"] + [NEXT % "user"]},
        {"match": "Please continue.", "text": " Said PLUGH."},
    ]
    with serve_script(script(note, *first, thought=""), PLUGINS, *CONTEXT) as address:
        written = settings(address, extra_body={"enable_thinking": False})
        written["model"]["skipNextSpeakerCheck"] = False
        done = qwen_code(address, tmp_path, PROMPT, settings=written)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("The word is PLUGH. Said PLUGH.")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_it_shows_that_the_prompt_is_too_long(tmp_path, note, serve_script, protocol):
    with serve_script(script(note), PLUGINS, "--max-context", "8192") as address:
        done = qwen_code(address, tmp_path, PROMPT, protocol=protocol)
    assert (done.returncode, done.stdout.strip()) == (1, "")
    assert "this server's context holds 8192" in done.stderr
