"""Real clients against a real server process that plays a script."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

CALL = "<tool_call>\n<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>"
WEATHER = CALL % ("get_weather", "city", "Oslo")
SCRIPT: dict[str, Any] = {
    "name": "scripted",
    "replies": [
        {"match": "12 degrees", "text": "It is 12 degrees in Oslo."},
        {"match": "weather", "text": f"A call it is.</think>\n\nLooking it up.\n\n{WEATHER}"},
        {"match": "both", "text": f"</think>\n\n{WEATHER}\n{CALL % ('get_time', 'zone', 'CET')}"},
        {"match": "patch", "text": f"</think>\n\n{CALL % ('apply_patch', 'input', '*** Begin')}"},
        {"match": "greet", "text": "Greetings</think>\n\nHello, world."},
    ],
    "default": {"text": "OK."},
}
PLUGINS = "scripted,kv_bf16,openai"
SECONDS = 120.0  # for a server to start on a busy machine

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `agents`

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def serve_script(tmp_path_factory: pytest.TempPathFactory, serve_model: Serve) -> Serve:
    """``with serve_script(script, plugins, *flags) as address``: a server process, and where it listens."""

    @contextmanager
    def serving(script: dict[str, Any], plugins: str, *flags: str) -> Iterator[str]:
        file = tmp_path_factory.mktemp("script") / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        with serve_model(f"scripted:{file}", plugins, *flags) as address:
            yield address

    return serving


@pytest.fixture(scope="session")
def serve_model(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """``with serve_model(model, plugins, *flags) as address``: a server process, and where it listens."""

    @contextmanager
    def serving(model: str, plugins: str, *flags: str) -> Iterator[str]:
        log = tmp_path_factory.mktemp("server") / "server.log"
        command = [sys.executable, "-m", "ninfer_core.cli.serve", model, "--port", "0", "--greedy"]
        with log.open("w") as stderr:
            process = subprocess.Popen([*command, "--plugins", plugins, *flags], stderr=stderr)
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            finally:
                process.kill()

    return serving


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Once the server is ready."""
    deadline = time.monotonic() + SECONDS
    while "twice to stop" not in (text := log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, f"the server did not start: {text}"
        time.sleep(0.05)
    return text.split("listening address=")[1].split()[0]


@pytest.fixture(scope="session")
def base_url(serve_script: Serve) -> Iterator[str]:
    """Where the server listens, its ``/v1`` included."""
    with serve_script(SCRIPT, PLUGINS) as address:
        yield f"http://{address}/v1"
