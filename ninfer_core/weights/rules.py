"""What a family asks of an artifact beside its parameters' shapes (``spec/artifact.md`` §20 rows 37, 38, 42, 43)."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_core.api import ModelFamily
from ninfer_core.errors import ArtifactError

from .artifact import ArtifactCheckpoint
from .directory import Component, Directory
from .names import listed, plain, quoted
from .proposal import stated_head

TEXT = "text"


def broken_rules(family: ModelFamily, checkpoint: ArtifactCheckpoint) -> Iterator[ArtifactError]:
    """Every rule of ``family`` that the artifact breaks; parameters that are not there are somebody else's to name."""
    directory, path = checkpoint.container.directory, checkpoint.path
    for name, wanted in family.direct_formats(checkpoint.config).items():
        for found in formats_of(checkpoint, name):
            if found != wanted:
                yield ArtifactError(f"{path}: parameter {quoted(name)}: expected {wanted}, found {plain(found)}")
    for name, inputs in family.uses(checkpoint.config).items():
        if name in directory.bindings:
            stated = {use.input for use in directory.uses_of.get(name, ())}
            for missing in (entry for entry in inputs if entry not in stated):
                yield ArtifactError(f"{path}: missing Use {plain(name)}@{plain(missing)}")
    for component in family.companions:
        if component in directory.components:
            try:
                component_of(directory, path, component)
            except ArtifactError as error:
                yield error
    try:
        stated_head(checkpoint)
    except ArtifactError as error:
        yield error


def formats_of(checkpoint: ArtifactCheckpoint, name: str) -> list[str]:
    """The formats a parameter is stored in, each once; none where it is not bound."""
    binding = checkpoint.container.directory.bindings.get(name)
    parts = binding.parts if binding is not None else ()
    return list(dict.fromkeys(checkpoint.container.tensor_object(part.object).format for part in parts))


def component_of(directory: Directory, path: str, name: str) -> Component:
    """A component beside the text model; ArtifactError (row 43) when there is none, or it belongs to another one."""
    found = directory.components.get(name)
    if found is None:
        raise ArtifactError(
            f"{path}: component {quoted(name)} is not in this artifact (available: {listed(directory.components)})"
        )
    if found.target != TEXT:
        target = "none" if found.target is None else quoted(found.target)
        raise ArtifactError(f"{path}: component {quoted(name)}: its target has to be {quoted(TEXT)}, found {target}")
    return found
