"""A GGUF file as a Source: tensors read from the mapping when asked for, tokenizer files made from its vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ninfer_core.api import ArtifactError, EncodedTensor, Source, SourceTensor

from .formats import LAYOUT
from .reader import GGUF, TensorEntry, read
from .tokenizer import TABLES, resources


def open_source(path: str) -> Source:
    """Open one GGUF file; ArtifactError for one that is damaged, split, big-endian or stored in unknown types."""
    file = read(path)
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ArtifactError(f"{path}: general.architecture is missing; a GGUF model file names its architecture")
    config: dict[str, Any] = {key: value for key, value in file.metadata.items() if key not in TABLES}
    return Source(
        kind="gguf",
        path=path,
        architecture=architecture,
        config=config,
        tensors={entry.name: source_tensor(file, entry) for entry in file.tensors.values()},
        resources=resources(path, file.metadata),
        # general.name is a training run's title; the file's name is what people call the model
        name=Path(path).stem,
    )


def source_tensor(file: GGUF, entry: TensorEntry) -> SourceTensor:
    return SourceTensor(name=entry.name, format=entry.format, shape=entry.shape, read=reader(file, entry))


def reader(file: GGUF, entry: TensorEntry) -> Callable[[], EncodedTensor]:
    """Gives a view of the mapping: no byte is read before it is used."""

    def read_tensor() -> EncodedTensor:
        data = torch.frombuffer(file.mapping, dtype=torch.uint8, count=entry.size, offset=entry.offset)
        layout = LAYOUT if entry.format.startswith("gguf_") else "contiguous_le_v1"
        return EncodedTensor(format=entry.format, layout=layout, shape=entry.shape, data=data)

    return read_tensor
