"""Who may import whom, read from the source: new plugins are found by themselves."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PRODUCT = [ROOT / "ninfer_core", ROOT / "kernels" / "ninfer_kernels", *PLUGINS]
# what runs code that came as data, or reads it
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}


def sources(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        if "build" not in path.relative_to(folder).parts:
            yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every module named by an import, each name of ``from x import y`` as ``x.y``."""
    for path, tree in sources(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((path, name.name) for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield from ((path, f"{node.module}.{name.name}") for name in node.names)


def under(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_the_source_is_where_this_test_looks():
    assert len(PLUGINS) >= 8
    assert all(any(True for _ in sources(folder)) for folder in PRODUCT)


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_enters_core_by_the_front_door_and_knows_no_sibling(plugin):
    doors = ["ninfer_core.api", "ninfer_kernels", f"ninfer_{plugin.name}"]
    for path, module in imports(plugin):
        in_tests = "tests" in path.relative_to(plugin).parts
        allowed = [*doors, "ninfer_core.testing", "ninfer_core.plugins"] if in_tests else doors
        if module.startswith("ninfer_"):
            assert under(module, *allowed), f"{path}: {module}"


def test_the_core_knows_no_plugin():
    names = [f"ninfer_{plugin.name}" for plugin in PLUGINS]
    for path, module in imports(ROOT / "ninfer_core"):
        assert not under(module, *names), f"{path}: {module}"


def test_the_kernels_know_no_core():
    for path, module in imports(ROOT / "kernels" / "ninfer_kernels"):
        assert not module.startswith("ninfer_") or under(module, "ninfer_kernels"), f"{path}: {module}"


def test_errors_import_nothing():
    tree = ast.parse((ROOT / "ninfer_core" / "errors.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("folder", PRODUCT, ids=lambda path: path.name)
def test_nothing_runs_code_that_came_as_data(folder):
    for path, module in imports(folder):
        assert module.partition(".")[0] not in FORBIDDEN_MODULES, f"{path}: {module}"
    for path, tree in sources(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, f"{path}:{node.lineno}: {node.func.id}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), f"{path}: allow_pickle"
                assert node.value.value is False, f"{path}: allow_pickle"


def test_the_linter_of_imports_knows_every_package():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    packages = [f"ninfer_{plugin.name}" for plugin in PLUGINS]
    assert sorted(config["root_packages"]) == sorted([*packages, "ninfer_core", "ninfer_kernels"])
    layers = next(contract for contract in config["contracts"] if contract["type"] == "layers")["layers"]
    assert sorted(layers[0].split(" | ")) == sorted(packages)
    assert layers[1:] == ["ninfer_core", "ninfer_kernels"]
