"""What the core itself offers through the plugin hooks: its options, commands, importers and plain weight formats."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from ninfer_core.api import Command, Importer, Option, WeightFormat, hookimpl

OPTION_ROOMS = ("ninfer_core.engine.options", "ninfer_core.serve.options", "ninfer_core.logs")
COMMAND_ROOMS = tuple(
    f"ninfer_core.cli.{name}" for name in ("run", "convert", "inspect", "plugins", "new_plugin", "bench")
)


@hookimpl
def ninfer_options() -> Iterable[Option]:
    return [option for room in OPTION_ROOMS for option in _offered(room, "OPTIONS")]


@hookimpl
def ninfer_commands() -> Iterable[Command]:
    return [item for room in COMMAND_ROOMS for item in _offered(room, "COMMAND")]


@hookimpl
def ninfer_importers() -> Iterable[Importer]:
    return _offered("ninfer_core.weights.huggingface", "IMPORTER")


@hookimpl
def ninfer_weight_formats() -> Iterable[WeightFormat]:
    return _offered("ninfer_core.weights.formats", "FORMATS")


def _offered(room: str, name: str) -> list[Any]:
    found = getattr(importlib.import_module(room), name)
    return list(found) if isinstance(found, (tuple, list)) else [found]
