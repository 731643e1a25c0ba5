"""A named set of plugins, whatever else is installed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import ModuleType

from ninfer_core.errors import PluginError
from ninfer_core.plugins import Plugins, load


def compose(only: Collection[str] = (), *, modules: Sequence[tuple[str, ModuleType]] = ()) -> Plugins:
    """The core, the installed plugins named in ``only`` and the ``(name, module)`` pairs that are not installed.

    Raises PluginError when one of them did not load: a test must not pass because what it tests is missing.
    """
    plugins = load(only=frozenset(only), modules=modules)
    broken = plugins.broken()
    if broken:
        raise PluginError("; ".join(f"{record.name}: {record.reason}" for record in broken))
    return plugins
