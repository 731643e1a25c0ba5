"""Lists that a reader relies on are complete: hooks, options, the map, the plugins' own rooms."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from ninfer_core import hookspecs, option_text
from ninfer_core.plugins import load

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
HOOKS = [name for name in dir(hookspecs) if name.startswith("ninfer_")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(hook: str) -> str:
    """What docs/hooks.md says of one hook."""
    return re.split(r"^## ", read("docs/hooks.md").split(f"## `{hook}(", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_an_example_that_compiles(hook):
    spec = inspect.signature(getattr(hookspecs, hook))
    assert f"## `{hook}({', '.join(spec.parameters)})`" in read("docs/hooks.md")
    (example,) = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
    tree = ast.parse(example)
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert hook in functions, "the example implements another hook"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_example_of_a_hook_loads_as_a_plugin(hook, tmp_path, monkeypatch):
    import importlib.util

    (example,) = re.findall(r"```python\n(.*?)```", section(hook), re.DOTALL)
    path = tmp_path / f"example_{hook}.py"
    path.write_text(example, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugins = load(only=(), modules=[("example", module)])
    assert plugins.broken() == []
    assert plugins.records[-1].offers[hook.removeprefix("ninfer_")]


def test_no_documented_hook_is_gone():
    assert sorted(re.findall(r"^## `(ninfer_\w+)\(", read("docs/hooks.md"), re.MULTILINE)) == sorted(HOOKS)


def test_the_options_page_is_what_the_declarations_say():
    plugins = load(only=[plugin.name for plugin in PLUGINS])
    assert read("docs/options.md") == option_text.document(plugins), "run `make docs`"


def test_the_map_names_every_folder():
    text = read("docs/map.md")
    homes = [ROOT / "ninfer_core", ROOT / "kernels" / "ninfer_kernels", ROOT / "bench"]
    rooms = {str(path.parent.relative_to(ROOT)) for home in homes for path in home.rglob("*.py")}
    rooms |= {f"plugins/{plugin.name}" for plugin in PLUGINS}
    missing = [room for room in sorted(rooms) if f"`{room}/`" not in text]
    assert not missing, f"docs/map.md does not name {missing}"


def test_the_map_names_nothing_that_is_gone():
    for room in re.findall(r"^\| `([\w/.-]+)/` \|", read("docs/map.md"), re.MULTILINE):
        assert (ROOT / room).is_dir(), room


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_every_plugin_has_its_rooms(plugin):
    project = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == f"ninfer-{plugin.name.replace('_', '-')}"
    assert project["entry-points"]["ninfer"] == {plugin.name: f"ninfer_{plugin.name}"}
    assert len((plugin / "README.md").read_text(encoding="utf-8").splitlines()) >= 5
    tests = "".join(path.read_text(encoding="utf-8") for path in (plugin / "tests").glob("test_*.py"))
    assert re.search(r"class \w+\(\w*Contract\b", tests), "no contract class of ninfer_core.testing is subclassed"


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_module_is_hooks_and_descriptors(plugin):
    path = plugin / f"ninfer_{plugin.name}" / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, ast.ClassDef)], "classes belong in a module of their own"
    assert "NINFER_API = 1" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "changes").glob("*")), ids=lambda path: path.name)
def test_a_change_fragment_has_a_kind_and_a_text(path):
    if path.name == "README.md":
        return
    assert re.fullmatch(r"[\w-]+\.(added|changed|fixed|removed)\.md", path.name)
    assert path.read_text(encoding="utf-8").strip()


DOCUMENTED = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/ninfer_*/document.py"))


@pytest.mark.parametrize("module", DOCUMENTED)
def test_the_page_of_a_protocol_is_what_its_bodies_say(module):
    import importlib

    from ninfer_core import field_text

    made = field_text.document(importlib.import_module(f"{module}.document").DOCUMENT)
    page = f"docs/protocols/{module.removeprefix('ninfer_')}.md"
    assert read(page) == made, "run `make docs`"
    # unwrapped prose is fine in a made page, but no cell may break its table
    assert all(line.count("|") - line.count("\\|") in (0, 3, 5) for line in made.splitlines())
