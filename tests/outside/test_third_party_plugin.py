"""A stranger's one-file plugin: installed by pip into an environment of its own, served with, removed again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

PLUGIN = '''"""--kv-dtype half: K and V kept as fp16."""

from ninfer_core.api import KVDtype, Plane, hookimpl

NINFER_API = 1


@hookimpl
def ninfer_kv_dtypes():
    return [KVDtype(name="half", summary="keys and values as fp16", key_planes=planes, open=HalfCodec)]


def planes(head_dim):
    return (Plane(dtype="float16", width=head_dim),)


class HalfCodec:
    def __init__(self, head_dim):
        self.head_dim = head_dim

    def encode(self, rows):  # [R, D] -> planes
        return (rows.half(),)

    def decode(self, planes):
        return planes[0].float()
'''
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "ninfer-kv-half"
version = "0.1.0"
dependencies = ["ninfer>=0.1,<0.2"]

[project.entry-points.ninfer]
kv_half = "ninfer_kv_half"

[tool.setuptools]
py-modules = ["ninfer_kv_half"]
"""
SCRIPT = {
    "name": "toy",
    "replies": [{"match": "weather", "text": "</think>\n\nIt is sunny."}],
    "default": {"text": "OK."},
}
START_SECONDS = 120


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """The interpreter of a fresh environment that sees this one's packages; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    paths = {key: sysconfig.get_path(key) for key in ("purelib", "platlib")}
    home = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # addsitedir and not the bare path: the packages of this repository are found through .pth files of their own
    lines = [f"import site; site.addsitedir({path!r})" for path in sorted(set(paths.values()))]
    (home / "parent.pth").write_text("\n".join(lines) + "\n")
    return python


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kv_half")
    (folder / "ninfer_kv_half.py").write_text(PLUGIN)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "script.json"
    path.write_bytes(msgspec.json.encode(SCRIPT))
    return f"scripted:{path}"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def pip(python: Path, *words: str | Path) -> None:
    done = run(python, "-m", "pip", "--disable-pip-version-check", *words)
    assert done.returncode == 0, done.stdout + done.stderr


def plugins(python: Path) -> dict[str, dict]:
    done = run(python, "-m", "ninfer_core.cli.main", "plugins", "--json")
    assert done.returncode == 0, done.stderr
    return {record["name"]: record for record in msgspec.json.decode(done.stdout)["plugins"]}


@contextmanager
def server(python: Path, *words: str) -> Iterator[str]:
    """A running server's base URL; ended by SIGTERM."""
    command = [str(python), "-m", "ninfer_core.cli.serve", *words, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    try:
        yield wait_for(process, lines)
    finally:
        process.terminate()
        status = process.wait(timeout=60)
        reader.join(timeout=10)
        process.stdout.close()
    assert status == 0, "".join(lines)


def wait_for(process: subprocess.Popen[str], lines: list[str]) -> str:
    """Until the server says where it is and answers there."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(lines))
        if found and httpx.get(f"{found[0]}/health").status_code == 200:
            return found[0]
        assert process.poll() is None, "".join(lines)
        time.sleep(0.1)
    raise AssertionError("not ready: " + "".join(lines))


def test_a_one_file_plugin_is_installed_served_with_and_removed(environment, project, script):
    assert "kv_half" not in plugins(environment)
    pip(environment, "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", project)
    found = plugins(environment)
    assert found["kv_half"]["status"] == "loaded"
    assert found["kv_half"]["offers"] == {"kv_dtypes": ["half"]}
    assert (found["kv_half"]["distribution"], found["kv_half"]["version"]) == ("ninfer-kv-half", "0.1.0")
    assert found["kv_bf16"]["status"] == "loaded"

    with server(environment, script, "--kv-dtype", "half") as url:
        body = {"model": "toy", "messages": [{"role": "user", "content": "How is the weather?"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "It is sunny."

    pip(environment, "uninstall", "--quiet", "--yes", "ninfer-kv-half")
    assert "kv_half" not in plugins(environment)
    refused = run(environment, "-m", "ninfer_core.cli.serve", script, "--kv-dtype", "half", "--port", "0")
    assert refused.returncode == 1
    assert refused.stderr == "ninfer: --kv-dtype 'half' is not installed; known: bf16, fp32, int8\n"


def test_this_environment_never_saw_the_plugin():
    assert "kv_half" not in plugins(Path(sys.executable))
