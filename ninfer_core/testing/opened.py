"""A checkpoint as a family's tests look at it: its parameters' numbers and forms, its model, its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import Checkpoint, ModelFamily, Source
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.plugins import Plugins

from .rig import Rig


class Opened:
    """A model's path, or a source made in memory for ``family``, opened with ``plugins``; on the CPU, in fp32.

    ``checkpoint.pieces(name, shape)`` says how a parameter is stored without reading it.
    """

    def __init__(self, model: str | Source, plugins: Plugins, family: ModelFamily | None = None) -> None:
        from ninfer_core.weights.checkpoint import open_stored, warnings_of
        from ninfer_core.weights.imported import ImportedCheckpoint
        from ninfer_core.weights.stored import full_inventory

        self.plugins = plugins
        self.checkpoint: Any
        if isinstance(model, str):
            self.family, self.checkpoint = open_stored(model, plugins)
        else:
            assert family is not None, "a source does not say whose it is"
            plan = family.adapt(model)
            self.family, self.checkpoint = family, ImportedCheckpoint(model, plan, plugins.weight_formats)
        self.warnings = warnings_of(self.checkpoint)
        self.inventory: Mapping[str, tuple[int, ...]] = full_inventory(self.family, self.checkpoint)
        self._weights = self._loader(self._runtime(True, {}))

    def value(self, name: str) -> Tensor:
        """A parameter's numbers."""
        found: Tensor = self._weights.tensor(name, self.inventory[name])
        return found

    def forms(self, name: str) -> list[str]:
        """The formats of a parameter's parts; nothing is read."""
        return [piece.format for piece in self.checkpoint.pieces(name, self.inventory[name])]

    def rig(self, *, reference: bool = True, options: Mapping[str, Any] | None = None) -> Rig:
        """The built model on a bench of its own."""
        runtime = self._runtime(reference, options or {})
        model: Model = self.family.build(self.checkpoint, self._loader(runtime), runtime)
        layout = self.family.state_layout(self.checkpoint.config, runtime)
        return Rig(model, self.family.kv_geometry(self.checkpoint.config), layout)

    def convert(self, path: Path, weights: str = "keep") -> Opened:
        """Its artifact, written to ``path`` and opened."""
        from ninfer_core.weights.conversion import new_artifact
        from ninfer_core.weights.writer import write_artifact

        formats = self.plugins.weight_formats
        write_artifact(path, new_artifact(self.family, self.checkpoint, formats, weights=weights))
        return Opened(str(path), self.plugins)

    def uses_of(self, name: str) -> set[str]:
        """The inputs an artifact says a matrix is multiplied by."""
        return {use.input for use in self.checkpoint.container.directory.uses_of.get(name, ())}

    def _runtime(self, reference: bool, options: Mapping[str, Any]) -> Runtime:
        cpu = torch.device("cpu")
        return Runtime(device=cpu, dtype=torch.float32, reference=reference, max_context=512, options=options)

    def _loader(self, runtime: Runtime) -> Any:
        from ninfer_core.nn.loader import CheckpointWeights

        checkpoint: Checkpoint = self.checkpoint
        return CheckpointWeights(checkpoint, self.plugins.weight_formats, runtime)
