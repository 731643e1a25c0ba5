"""Discovery is cheap: what it may not load, asked of fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "litestar", "uvicorn", "numpy", "tokenizers", "transformers", "gguf", "numba", "PIL"}


def loaded(code: str) -> set[str]:
    """The modules in a fresh interpreter after ``code``."""
    code += "\nimport sys; sys.stdout.write('\\n'.join(sys.modules))"
    environment = {key: value for key, value in os.environ.items() if key != "NINFER_PLUGINS"}
    return set(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split("\n"))


def test_importing_the_package_loads_nothing_but_itself():
    before, after = loaded(""), loaded("import ninfer_core")
    assert {name for name in after - before if not name.startswith("ninfer_core")} == set()


def test_the_plugin_api_loads_no_torch_and_no_web_framework():
    assert not HEAVY & loaded("import ninfer_core.api, ninfer_core.hookspecs")


def test_discovery_imports_no_torch():
    modules = loaded(
        "from ninfer_core.plugins import load; plugins = load(); assert not plugins.broken(), plugins.broken()"
    )
    assert not HEAVY & modules


@pytest.mark.parametrize("line", [["--help"], ["plugins"], ["run", "--help"], ["inspect", "--help"]], ids=" ".join)
def test_help_and_lists_need_no_torch(line):
    modules = loaded(
        f"import io, contextlib\nfrom ninfer_core.cli.main import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): assert main({line!r}) == 0"
    )
    assert not HEAVY & modules


def test_help_of_the_server_needs_no_torch():
    modules = loaded(
        "import io, contextlib, sys\nfrom ninfer_core.cli.serve import main\nsys.argv = ['x', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()): assert main() == 0"
    )
    assert not HEAVY & modules
