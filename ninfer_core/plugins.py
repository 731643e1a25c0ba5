"""Discovery of plugins: the entry-point group ``ninfer``, read once per process.

Discovery imports each plugin's module and collects its descriptors; it loads neither torch nor a web framework. A
plugin
that fails to import, states another API level or raises in a hook is listed as broken and leaves the others alone: a
start fails only when something it needs is not there, and the error then names the broken plugin.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from ninfer_core import api, hookspecs
from ninfer_core.errors import PluginConflict, PluginError, StartupError, UnknownChoice
from ninfer_core.registry import Registry, nearest

T = TypeVar("T")
GROUP = "ninfer"
CORE = "core"  # what the core itself offers through the same hooks


@dataclass(kw_only=True, slots=True)
class PluginRecord:
    """One installed plugin and what became of it."""

    name: str  # the entry point's name
    module: str
    distribution: str = ""
    version: str = ""
    api_level: int | None = None
    status: str = "loaded"  # "loaded", "left out", "broken"
    reason: str = ""
    offers: dict[str, list[str]] = field(default_factory=dict)  # category -> names


@dataclass(kw_only=True, slots=True)
class Plugins:
    """The composed choices of this process. Immutable after ``load``; engines are built from it any number of times."""

    records: list[PluginRecord]
    options: Registry[api.Option] = field(default_factory=lambda: Registry("option"))
    commands: Registry[api.Command] = field(default_factory=lambda: Registry("command"))
    importers: Registry[api.Importer] = field(default_factory=lambda: Registry("importer"))
    weight_formats: Registry[api.WeightFormat] = field(default_factory=lambda: Registry("weight format"))
    model_families: Registry[api.ModelFamily] = field(default_factory=lambda: Registry("model family"))
    kv_dtypes: Registry[api.KVDtype] = field(default_factory=lambda: Registry("--kv-dtype"))
    speculative_backends: Registry[api.SpeculativeBackend] = field(default_factory=lambda: Registry("--spec"))
    protocol_frontends: Registry[api.ProtocolFrontend] = field(default_factory=lambda: Registry("--frontends"))

    def broken(self) -> list[PluginRecord]:
        return [record for record in self.records if record.status == "broken"]

    @contextlib.contextmanager
    def blaming(self, registry: Registry[Any], name: str, what: str) -> Iterator[None]:
        """Around a call into what a plugin offers: whatever it raises becomes one line that names the plugin.

        StartupErrors pass: the plugin has said itself what is wrong.
        """
        try:
            yield
        except StartupError:
            raise
        except CAUGHT as error:
            origin = registry.origin(name)
            said = f"{type(error).__name__}: {_line(error)}"
            raise StartupError(f"plugin {origin!r} failed to {what} {name!r}: {said}") from error

    def choose(self, registry: Registry[T], name: str) -> T:
        """``registry[name]``; when it is missing and a plugin is broken, the error says so too."""
        try:
            return registry[name]
        except UnknownChoice as unknown:
            broken = self.broken()
            if not broken:
                raise
            why = "; ".join(f"plugin {r.name!r} did not load: {r.reason}" for r in broken)
            raise StartupError(f"{unknown}; {why}") from None


CAUGHT = (Exception, SystemExit)
"""What a plugin may raise without ending the process: a module that calls ``sys.exit`` is broken, no more."""

KINDS: dict[str, type] = {
    "options": api.Option,
    "commands": api.Command,
    "importers": api.Importer,
    "weight_formats": api.WeightFormat,
    "model_families": api.ModelFamily,
    "kv_dtypes": api.KVDtype,
    "speculative_backends": api.SpeculativeBackend,
    "protocol_frontends": api.ProtocolFrontend,
}
CATEGORIES = tuple(name.removeprefix("ninfer_") for name in dir(hookspecs) if name.startswith("ninfer_"))


def load(
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    *,
    modules: Sequence[tuple[str, ModuleType]] = (),
) -> Plugins:
    """Discover and compose. ``only`` narrows to these plugins (``NINFER_PLUGINS`` when None), ``without`` leaves some
    out, ``modules`` adds plugins that are not installed (tests). Raises PluginConflict, or PluginError for a selected
    name nobody installed."""
    if only is None and (env := os.environ.get("NINFER_PLUGINS")):
        only = [part.strip() for part in env.split(",") if part.strip()]
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(records=[])
    found = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    _check_names([*(p.name for p in found), *(name for name, _ in modules)], [*(only or ()), *without])
    from ninfer_core import builtin

    core = PluginRecord(name=CORE, module="ninfer_core.builtin", distribution="ninfer", api_level=api.API_LEVEL)
    core.version = _own_version()
    plugins.records.append(core)
    _register(manager, plugins, core, builtin)
    seen: dict[str, str] = {}
    for point in found:
        distribution = point.dist
        record = PluginRecord(name=point.name, module=point.value)
        if distribution is not None:
            record.distribution, record.version = distribution.name, distribution.version
        plugins.records.append(record)
        if (only is not None and point.name not in only) or point.name in without:
            record.status, record.reason = "left out", "by --plugins, --no-plugin or NINFER_PLUGINS"
            continue
        if point.name in seen:
            way_out = "uninstall one, or leave both out with --no-plugin"
            raise PluginConflict("plugin", point.name, seen[point.name], record.distribution, way_out)
        seen[point.name] = record.distribution
        try:
            module = importlib.import_module(point.value)
        except CAUGHT as error:
            record.status, record.reason = "broken", f"import failed: {type(error).__name__}: {_line(error)}"
            continue
        _register(manager, plugins, record, module)
    for name, module in modules:
        record = PluginRecord(name=name, module=module.__name__)
        plugins.records.append(record)
        _register(manager, plugins, record, module)
    return plugins


def _register(manager: pluggy.PluginManager, plugins: Plugins, record: PluginRecord, module: ModuleType) -> None:
    """Check one plugin and add what it offers, all or nothing: a broken plugin offers nothing."""
    if record.name != CORE:
        record.api_level = level = getattr(module, "NINFER_API", None)
        if type(level) is not int or level != api.API_LEVEL:
            written = "states no API level (NINFER_API)" if level is None else f"was written for API level {level!r}"
            record.status, record.reason = "broken", f"{record.name} {written}; this is API level {api.API_LEVEL}"
            return
    try:
        manager.register(module, name=record.name)
        manager.check_pending()
        offered = [(category, item) for category in CATEGORIES for item in _items(manager, module, category)]
    except PluginError as error:
        record.status, record.reason = "broken", _line(error)
    except CAUGHT as error:
        record.status, record.reason = "broken", f"{type(error).__name__}: {_line(error)}"
    if record.status == "broken":
        if manager.is_registered(module):
            manager.unregister(module)
        return
    for category, item in offered:
        _add(plugins, record, category, item)


def _items(manager: pluggy.PluginManager, module: ModuleType, category: str) -> Iterable[Any]:
    hook = f"ninfer_{category}"
    if not hasattr(module, hook):
        return []
    others = [other for other in manager.get_plugins() if other is not module]
    try:
        items = [item for items in manager.subset_hook_caller(hook, others)() for item in items]
    except CAUGHT as error:
        raise PluginError(f"{hook} raised {type(error).__name__}: {_line(error)}") from error
    wanted = KINDS[category]
    for item in items:
        if not isinstance(item, wanted):
            raise PluginError(f"{hook} returned {item!r:.80}, which is no {wanted.__name__}")
    return items


def _add(plugins: Plugins, record: PluginRecord, category: str, item: Any) -> None:
    registry: Registry[Any] = getattr(plugins, category)
    name = item.flag if category == "options" else item.name
    registry.add(name, item, origin=record.name)
    record.offers.setdefault(category, []).append(name)
    for option in getattr(item, "options", ()):
        plugins.options.add(option.flag, option, origin=record.name)
        record.offers.setdefault("options", []).append(option.flag)


def _check_names(installed: list[str], asked: list[str]) -> None:
    for name in asked:
        if name not in installed:
            raise UnknownChoice("plugin", name, sorted(installed), nearest(name, installed))


def _own_version() -> str:
    from ninfer_core import __version__

    return __version__


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
