"""Every extension point, in the order a start meets them. A plugin's module holds the implementations.

All hooks are called once per process, at discovery; they return descriptors and must not import torch, triton or a web
framework. A name offered twice in one category stops the start and names both plugins (PluginConflict).
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from ninfer_core.api import (
    Command,
    Importer,
    KVDtype,
    ModelFamily,
    Option,
    ProtocolFrontend,
    SpeculativeBackend,
    WeightFormat,
)

hookspec = pluggy.HookspecMarker("ninfer")


@hookspec
def ninfer_options() -> Iterable[Option]:  # type: ignore[empty-body]
    """Command-line options. Two plugins that declare one flag stop the start."""


@hookspec
def ninfer_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Extra ``ninfer`` subcommands."""


@hookspec
def ninfer_importers() -> Iterable[Importer]:  # type: ignore[empty-body]
    """Foreign checkpoints that can be served or converted; the first that claims a path opens it."""


@hookspec
def ninfer_weight_formats() -> Iterable[WeightFormat]:  # type: ignore[empty-body]
    """Stored numeric formats; chosen by the artifact."""


@hookspec
def ninfer_model_families() -> Iterable[ModelFamily]:  # type: ignore[empty-body]
    """Model families; chosen by the architecture of the checkpoint."""


@hookspec
def ninfer_kv_dtypes() -> Iterable[KVDtype]:  # type: ignore[empty-body]
    """KV storages selectable with ``--kv-dtype``."""


@hookspec
def ninfer_speculative_backends() -> Iterable[SpeculativeBackend]:  # type: ignore[empty-body]
    """Drafters and copy sources selectable with ``--spec``."""


@hookspec
def ninfer_protocol_frontends() -> Iterable[ProtocolFrontend]:  # type: ignore[empty-body]
    """HTTP protocols; all are served unless ``--frontends`` names some."""
