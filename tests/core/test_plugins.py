"""Discovery: what is loaded, left out, broken or in conflict, and what the operator is told."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

from ninfer_core import api
from ninfer_core.api import Command, KVDtype, Option, Plane, hookimpl
from ninfer_core.errors import PluginConflict, StartupError, UnknownChoice
from ninfer_core.plugins import CATEGORIES, CORE, Plugins, load
from ninfer_core.registry import Registry, nearest


def module(level: int | None = api.API_LEVEL, **hooks: Any) -> ModuleType:
    """A plugin whose hooks return the given lists, or raise the given exception."""
    made = ModuleType("toy")
    if level is not None:
        made.__dict__["NINFER_API"] = level
    for name, answer in hooks.items():
        made.__dict__[name] = implementation(answer)
    return made


def implementation(answer: Any) -> Any:
    @hookimpl
    def hook() -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return hook


def dtype(name: str) -> KVDtype:
    return KVDtype(name=name, summary="toy", key_planes=lambda d: (Plane(dtype="int8", width=d),), open=lambda d: None)


def compose(**modules: ModuleType) -> Plugins:
    return load(only=(), modules=list(modules.items()))


def record(plugins: Plugins, name: str) -> Any:
    return next(found for found in plugins.records if found.name == name)


def test_what_a_plugin_offers_is_found_under_its_name_with_its_origin():
    plugins = compose(
        a=module(ninfer_kv_dtypes=[dtype("x"), dtype("y")], ninfer_options=[Option(flag="--z", help="z")])
    )
    assert plugins.kv_dtypes["x"].name == "x"
    assert plugins.kv_dtypes.origin("y") == "a"
    assert record(plugins, "a").offers == {"kv_dtypes": ["x", "y"], "options": ["--z"]}
    assert record(plugins, "a").status == "loaded"


def test_the_core_offers_through_the_same_hooks():
    plugins = compose()
    assert plugins.commands.origin("plugins") == CORE
    assert record(plugins, CORE).api_level == api.API_LEVEL


def test_one_name_twice_stops_the_start_and_names_both():
    with pytest.raises(PluginConflict) as conflict:
        compose(first=module(ninfer_kv_dtypes=[dtype("x")]), second=module(ninfer_kv_dtypes=[dtype("x")]))
    message = str(conflict.value)
    assert "first" in message
    assert "second" in message
    assert "--kv-dtype 'x'" in message
    assert "--no-plugin" in message


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (module(level=None), "a states no API level (NINFER_API); this is API level 1"),
        (module(level=7), "a was written for API level 7; this is API level 1"),
        (module(ninfer_kv_dtypes=RuntimeError("no\nluck")), "ninfer_kv_dtypes raised RuntimeError: no luck"),
        (module(ninfer_kv_dtypes=7), "ninfer_kv_dtypes raised TypeError"),
        (module(ninfer_kv_dtyps=[]), "ninfer_kv_dtyps"),
    ],
    ids=["no level", "another level", "a hook raises", "a hook returns a number", "a misspelt hook"],
)
def test_a_broken_plugin_is_named_and_leaves_the_others_alone(made, reason):
    good = module(ninfer_kv_dtypes=[dtype("x")])
    plugins = compose(a=made, b=good)
    assert record(plugins, "a").status == "broken"
    assert reason in record(plugins, "a").reason
    assert "\n" not in record(plugins, "a").reason
    assert record(plugins, "a").offers == {}
    assert plugins.kv_dtypes.names() == ["x"]
    assert [found.name for found in plugins.broken()] == ["a"]


def test_a_missing_choice_says_which_plugin_did_not_load():
    plugins = compose(a=module(level=7))
    with pytest.raises(StartupError) as refusal:
        plugins.choose(plugins.kv_dtypes, "x")
    assert "--kv-dtype 'x' is not installed" in str(refusal.value)
    assert "plugin 'a' did not load: a was written for API level 7" in str(refusal.value)


def test_a_missing_choice_of_healthy_plugins_lists_the_known_ones():
    plugins = compose(a=module(ninfer_kv_dtypes=[dtype("int8"), dtype("bf16")]))
    with pytest.raises(UnknownChoice) as refusal:
        plugins.choose(plugins.kv_dtypes, "int9")
    assert str(refusal.value) == "--kv-dtype 'int9' is not installed (did you mean 'int8'?); known: bf16, int8"


class Point:
    """An entry point as ``importlib.metadata`` gives it."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value
        self.dist = type("Dist", (), {"name": f"ninfer-{name}", "version": "1.2"})()


@pytest.fixture
def installed(monkeypatch):
    def install(*points: Point, **modules: ModuleType) -> None:
        monkeypatch.setattr(metadata, "entry_points", lambda group: [p for p in points if group == "ninfer"])
        for name, made in modules.items():
            monkeypatch.setitem(sys.modules, name, made)

    monkeypatch.delenv("NINFER_PLUGINS", raising=False)
    return install


def test_an_installed_plugin_that_does_not_import_is_listed_as_broken(installed):
    installed(Point("a", "no_such_module_at_all"), Point("b", "toy_b"), toy_b=module(ninfer_kv_dtypes=[dtype("x")]))
    plugins = load()
    assert record(plugins, "a").reason.startswith("import failed: ModuleNotFoundError")
    assert (record(plugins, "b").distribution, record(plugins, "b").version) == ("ninfer-b", "1.2")
    assert "x" in plugins.kv_dtypes


def test_a_plugin_left_out_is_not_even_imported(installed):
    installed(Point("a", "no_such_module_at_all"), Point("b", "toy_b"), toy_b=module())
    for plugins in (load(only=["b"]), load(without=["a"])):
        assert record(plugins, "a").status == "left out"
        assert record(plugins, "b").status == "loaded"


def test_the_environment_selects_when_the_line_does_not(installed, monkeypatch):
    installed(Point("a", "toy_a"), Point("b", "toy_b"), toy_a=module(), toy_b=module())
    monkeypatch.setenv("NINFER_PLUGINS", " b ,")
    assert [r.name for r in load().records if r.status == "loaded"] == [CORE, "b"]
    assert [r.name for r in load(only=["a"]).records if r.status == "loaded"] == [CORE, "a"]
    monkeypatch.setenv("NINFER_PLUGINS", "c")
    with pytest.raises(UnknownChoice, match="known: a, b"):
        load()


def test_two_distributions_with_one_entry_point_are_a_conflict(installed):
    installed(Point("a", "toy_a"), Point("a", "toy_b"), toy_a=module(), toy_b=module())
    with pytest.raises(PluginConflict):
        load()


def test_discovery_runs_any_number_of_times_with_the_same_result():
    first, second = load(), load()
    assert [(r.name, r.offers) for r in first.records] == [(r.name, r.offers) for r in second.records]


def test_every_hook_has_a_registry():
    plugins = Plugins(records=[])
    assert all(isinstance(getattr(plugins, category), Registry) for category in CATEGORIES)


def test_commands_are_found_by_name():
    plugins = compose(a=module(ninfer_commands=[Command(name="hello", summary="says so", run=lambda argv: 0)]))
    assert plugins.commands["hello"].run([]) == 0


@pytest.mark.parametrize(("typed", "meant"), [("int9", "int8"), ("b16", "bf16"), ("zzz", None)])
def test_the_nearest_name_is_what_a_typo_meant(typed, meant):
    assert nearest(typed, ["bf16", "int8"]) == meant


def test_a_registry_lists_its_names_in_order_and_iterates_its_items():
    registry: Registry[int] = Registry("number")
    registry.add("two", 2, origin="b")
    registry.add("one", 1, origin="a")
    assert registry.names() == ["one", "two"]
    assert sorted(registry) == [1, 2]
    assert len(registry) == 2
    assert "one" in registry


class Unequal:
    def __ne__(self, other):
        raise TypeError("no comparing")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (module(ninfer_kv_dtypes=SystemExit(7)), "ninfer_kv_dtypes raised SystemExit: 7"),
        (module(ninfer_kv_dtypes="abc"), "ninfer_kv_dtypes returned 'a', which is no KVDtype"),
        (module(ninfer_importers=[1]), "ninfer_importers returned 1, which is no Importer"),
        (module(level="1"), "was written for API level '1'"),
        (module(level=Unequal()), "was written for API level"),
        (module(level=True), "was written for API level True"),
    ],
    ids=["exits", "text", "numbers", "level-text", "level-object", "level-bool"],
)
def test_whatever_a_plugin_does_at_discovery_it_alone_is_broken(made, reason):
    plugins = compose(bad=made, good=module(ninfer_kv_dtypes=[dtype("x")]))
    assert reason in record(plugins, "bad").reason
    assert plugins.kv_dtypes.names() == ["x"]


@pytest.mark.parametrize("raised", [RuntimeError("boom"), SystemExit(5)])
def test_a_plugin_that_fails_in_use_is_named_with_what_was_asked_of_it(raised):
    plugins = compose(maker=module(ninfer_kv_dtypes=[dtype("x")]))
    named = pytest.raises(StartupError, match="plugin 'maker' failed to open the KV storage 'x'")
    with named, plugins.blaming(plugins.kv_dtypes, "x", "open the KV storage"):
        raise raised
    with pytest.raises(UnknownChoice), plugins.blaming(plugins.kv_dtypes, "x", "open the KV storage"):
        raise UnknownChoice("--x", "y", [], None)


def test_two_installed_under_one_name_can_both_be_left_out(installed):
    installed(Point("a", "toy_a"), Point("a", "toy_b"), toy_a=module(), toy_b=module())
    assert [r.status for r in load(without=["a"]).records if r.name == "a"] == ["left out"] * 2
