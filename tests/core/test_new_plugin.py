"""``ninfer new-plugin``: what it refuses, and that every kind it writes works as written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.cli import new_plugin
from ninfer_core.cli.main import guarded
from ninfer_core.errors import OptionError, StartupError, UnknownChoice
from ninfer_core.plugins import CATEGORIES, load

OFFERS_NO_PLUGIN = {"options", "commands"}  # hooks a plugin of any kind may have beside its own


def name_of(kind: str) -> str:
    return f"toy_{kind.replace('-', '_')}"


def run(command: list[str], **where: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, **where)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """One folder with a plugin of every kind."""
    folder = tmp_path_factory.mktemp("plugins")
    for kind in new_plugin.KINDS:
        assert guarded(new_plugin.run, [kind, name_of(kind), "--into", str(folder)]) == 0
    return folder


def test_there_is_a_kind_for_every_hook_of_a_plugin():
    assert set(new_plugin.KINDS.values()) == set(CATEGORIES) - OFFERS_NO_PLUGIN


@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_a_written_plugin_is_whole(written, kind):
    name = name_of(kind)
    files = {str(path.relative_to(written / name)) for path in (written / name).rglob("*") if path.is_file()}
    assert {"pyproject.toml", "README.md", f"ninfer_{name}/__init__.py"} <= files
    assert f"tests/test_{name}_contract.py" in files
    assert not [path for path in files if "@" in path or path.endswith(".tmpl")]
    for path in files:
        text = (written / name / path).read_text(encoding="utf-8")
        assert not any(word in text for word in ("@name@", "@module@", "@dist@", "@Name@", "@flag@"))
    assert f'{name} = "ninfer_{name}"' in (written / name / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_a_written_plugin_offers_its_name_and_loads_no_torch(written, kind):
    name = name_of(kind)
    code = f"""
import sys, ninfer_{name} as module
from ninfer_core.plugins import load
plugins = load(only=(), modules=[({name!r}, module)])
assert plugins.broken() == [], plugins.broken()
assert {name!r} in plugins.{new_plugin.KINDS[kind]}, plugins.{new_plugin.KINDS[kind]}.names()
assert not {{'torch', 'numpy'}} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(written / name)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_every_written_plugin_passes_its_contract(written):
    paths = os.pathsep.join(str(written / name_of(kind)) for kind in new_plugin.KINDS)
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", str(written)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = run(command, cwd=written, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for kind in new_plugin.KINDS:
        assert (written / name_of(kind) / "tests").is_dir()


@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_a_written_plugin_is_clean_for_the_linter_and_the_formatter(written, kind):
    rules = ["--isolated", "--line-length", "120"]
    for command in (["check", *rules, "--select", "E,F,W,I,B,UP,SIM,RUF"], ["format", *rules, "--check"]):
        # in the folder itself: that is how a linter knows which imports are its own
        done = run([sys.executable, "-m", "ruff", *command], cwd=written / name_of(kind))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", ["", "Half", "2fast", "my-half", "a__b", "_a", "a_", "class", "é", "a b", "a" * 41, "../x", "x\n"]
)
def test_a_name_that_cannot_be_a_module_is_refused(name):
    with pytest.raises(OptionError, match="it takes lower-case letters"):
        new_plugin.check_name(name, "kv-dtype", load(only=()))


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("kv-dtype", "llama", "taken by ninfer-llama"),
        ("kv-dtype", "core", "taken by ninfer"),
        ("weight-format", "kernels", "a module ninfer_kernels is installed"),
        ("importer", "huggingface", "importer 'huggingface' is offered by plugin 'core'"),
    ],
)
def test_a_name_somebody_has_is_refused(kind, name, why):
    with pytest.raises(OptionError, match=why):
        new_plugin.check_name(name, kind, load())


def test_an_unknown_kind_names_the_nearest(tmp_path):
    with pytest.raises(UnknownChoice, match="did you mean 'kv-dtype'"):
        new_plugin.run(["kv-dtyp", "x", "--into", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(StartupError, match="mine exists"):
        new_plugin.run(["kv-dtype", "mine", "--into", str(tmp_path)])
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot be written"):
        new_plugin.run(["kv-dtype", "mine", "--into", str(tmp_path / "file")])


def test_nothing_is_left_when_writing_stops_half_way(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(new_plugin, "_fill", full)
    with pytest.raises(StartupError, match="No space left on device"):
        new_plugin.run(["kv-dtype", "mine", "--into", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
