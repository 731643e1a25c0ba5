"""What ``ninfer inspect`` knows about a model: read from directories and headers, never from weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ninfer_core.errors import ArtifactError, StartupError
from ninfer_core.plugins import Plugins

from .artifact import ArtifactCheckpoint
from .checkpoint import OpenedModel, bind, checkpoint_facts, open_model, warnings_of
from .container import Container
from .directory import TensorObject, elements
from .names import plain, unbroken
from .stored import StoredCheckpoint, full_inventory


class TensorRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str  # the parameter; the stored tensor where no family gives it a name
    origin: str  # the object or source tensors behind it
    format: str
    shape: tuple[int, ...]
    bytes: int | None  # None: the format is not installed
    divisors: int = 1


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    payload_bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``refusals``: why a start with this model would fail; empty when it loads. ``notes``: what is worth knowing."""

    path: str
    kind: str  # "ninfer", or the importer's name
    architecture: str | None
    family: str | None
    name: str | None
    artifact_id: str | None
    parameters: int  # elements; shared ones once
    weight_bytes: int
    formats: Mapping[str, int]  # format -> bytes
    config: Mapping[str, Any]
    tensors: tuple[TensorRow, ...]
    resources: Mapping[str, int]  # role -> bytes
    files: tuple[FileRow, ...]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]
    description: str | None  # what the family adds


def inspect_model(path: str, plugins: Plugins) -> Report:
    """Everything about the model at ``path``; ArtifactError when the file cannot be read at all."""
    opened = open_model(path, plugins)
    try:
        return _report(path, opened, plugins)
    finally:
        opened.close()


def _report(path: str, opened: OpenedModel, plugins: Plugins) -> Report:
    container, source, checkpoint = opened.container, opened.source, opened.checkpoint
    refusals = _refusals(opened, plugins)
    tensors = _rows(opened, plugins)
    text = container.directory.components.get("text") if container is not None else None
    if checkpoint is not None:
        config: Mapping[str, Any] = checkpoint.config
    else:
        config = text.config if text is not None else (source.config if source is not None else {})
    totals = _totals(checkpoint, tensors)
    return Report(
        path=path,
        kind="ninfer" if container is not None else (opened.importer.name if opened.importer else ""),
        architecture=_architecture(opened, config),
        family=opened.family.name if opened.family is not None else None,
        name=_name(opened),
        artifact_id=container.artifact_id.hex() if container is not None else None,
        parameters=totals[0],
        weight_bytes=sum(totals[1].values()),
        formats=totals[1],
        config=config,
        tensors=tensors,
        resources=_resources(opened),
        files=_files(container),
        provenance=container.directory.provenance if container is not None else {},
        notes=_notes(totals[1], opened, plugins),
        refusals=refusals,
        description=_description(opened) if not refusals else None,
    )


def _refusals(opened: OpenedModel, plugins: Plugins) -> tuple[str, ...]:
    """What a start would say of the files, before it reads a weight."""
    found = [str(opened.refusal)] if opened.refusal is not None else []
    family, checkpoint = opened.family, opened.checkpoint
    if family is not None and checkpoint is not None:
        found += map(str, bind(family, checkpoint))
        try:
            with plugins.blaming(plugins.model_families, family.name, "read the prompt format of the family"):
                family.prompt(checkpoint)
        except StartupError as error:
            found.append(str(error))
    if opened.container is not None:
        found += opened.container.damaged_parts()
    return tuple(dict.fromkeys(found))


def _rows(opened: OpenedModel, plugins: Plugins) -> tuple[TensorRow, ...]:
    """Parameters where the family names them and they fit; whatever is stored otherwise."""
    if opened.container is not None:
        return _artifact_rows(opened.container)
    if opened.checkpoint is not None and opened.family is not None:
        try:
            return _parameter_rows(opened)
        except ArtifactError:
            pass
    sizes: dict[str, Callable[[tuple[int, ...]], int]] = {
        form.name: form.encoded_bytes for form in plugins.weight_formats
    }
    sizes |= {"fp16": lambda shape: 2 * elements(shape), "fp64": lambda shape: 8 * elements(shape)}
    found = opened.source.tensors.values() if opened.source is not None else ()
    return tuple(
        TensorRow(
            name=tensor.name,
            origin=tensor.name,
            format=tensor.format,
            shape=tensor.shape,
            bytes=_size(sizes, tensor.format, tensor.shape),
        )
        for tensor in found
    )


def _size(
    sizes: Mapping[str, Callable[[tuple[int, ...]], int]], format_name: str, shape: tuple[int, ...]
) -> int | None:
    try:
        return sizes[format_name](shape)
    except (KeyError, ValueError):
        return None


def _artifact_rows(container: Container) -> tuple[TensorRow, ...]:
    """Bindings in order, then tensors no parameter is bound to."""
    directory = container.directory
    rows, bound = [], set()
    for name, binding in directory.bindings.items():
        for part in binding.parts:
            item = container.tensor_object(part.object)
            bound.add(item.id)
            rows.append(_object_row(name, item, part.begin, part.end))
    beside = {part.object for use in directory.uses for binding in use.auxiliaries.values() for part in binding.parts}
    for rest in directory.objects.values():
        if isinstance(rest, TensorObject) and rest.id not in bound:
            what = "auxiliary" if rest.id in beside else "unbound"
            rows.append(_object_row(f"({what}) {rest.id}", rest, 0, elements(rest.shape)))
    return tuple(rows)


def _object_row(name: str, item: TensorObject, begin: int, end: int) -> TensorRow:
    """Elements of one object: whole rows where they are that."""
    count, total = end - begin, elements(item.shape)
    width = elements(item.shape[1:])
    shape = item.shape
    if count < total:
        shape = (count,) if begin % width or end % width else (count // width, *item.shape[1:])
    return TensorRow(
        name=name,
        origin=item.id,
        format=item.format,
        shape=shape,
        bytes=item.bytes * count // total,
        divisors=item.divisors,
    )


def _parameter_rows(opened: OpenedModel) -> tuple[TensorRow, ...]:
    assert opened.checkpoint is not None and opened.family is not None
    return tuple(
        TensorRow(name=name, origin=piece.origin, format=piece.format, shape=piece.shape, bytes=piece.bytes)
        for name, shape in full_inventory(opened.family, opened.checkpoint).items()
        for piece in opened.checkpoint.pieces(name, shape)
    )


def _totals(checkpoint: StoredCheckpoint | None, rows: tuple[TensorRow, ...]) -> tuple[int, Mapping[str, int]]:
    """Elements and bytes per format, shared tensors once; from the rows when the checkpoint cannot say."""
    if checkpoint is not None:
        try:
            facts = checkpoint_facts(checkpoint)
            return facts.parameters, facts.formats
        except ArtifactError:
            pass
    stored = {row.origin: row for row in rows}
    formats: dict[str, int] = {}
    for row in stored.values():
        formats[row.format] = formats.get(row.format, 0) + (row.bytes or 0)
    return sum(elements(row.shape) for row in stored.values()), formats


def _architecture(opened: OpenedModel, config: Mapping[str, Any]) -> str | None:
    if opened.checkpoint is not None:
        return opened.checkpoint.architecture
    if opened.source is not None:
        return opened.source.architecture
    found = config.get("architectures")
    return str(found[0]) if isinstance(found, list) and found else None


def _name(opened: OpenedModel) -> str | None:
    if opened.container is not None:
        return opened.container.directory.metadata.get("name")
    return opened.source.name if opened.source is not None else None


def _resources(opened: OpenedModel) -> Mapping[str, int]:
    if opened.source is not None:
        return {role: len(data) for role, data in opened.source.resources.items()}
    if opened.checkpoint is not None:
        return opened.checkpoint.resources()
    assert opened.container is not None
    directory = opened.container.directory
    return {
        f"{name}/{role}": directory.objects[reference].bytes
        for name, component in directory.components.items()
        for role, reference in component.resources.items()
    }


def _files(container: Container | None) -> tuple[FileRow, ...]:
    if container is None:
        return ()
    return tuple(
        FileRow(name=file.path or "(this file)", payload_bytes=file.payload_bytes) for file in container.directory.files
    )


def _notes(formats: Mapping[str, int], opened: OpenedModel, plugins: Plugins) -> tuple[str, ...]:
    notes = [] if opened.checkpoint is None else [unbroken(warning) for warning in warnings_of(opened.checkpoint)]
    for name in formats:
        if name not in plugins.weight_formats:
            notes.append(f"format {plain(name)} is not installed")
        elif not plugins.weight_formats[name].published:
            notes.append(f"format {name} is an extension: other readers of .ninfer files may not know it")
    if isinstance(opened.checkpoint, ArtifactCheckpoint) and opened.family is not None:
        others = [name for name in opened.checkpoint.container.directory.components if name != "text"]
        if others:
            notes.append(f"components beside the text model: {', '.join(plain(name) for name in others)}")
        notes += _directory_notes(opened.checkpoint.container)
    return tuple(notes)


def _directory_notes(container: Container) -> list[str]:
    """The proposal head, and what Uses say beside their inputs."""
    directory = container.directory
    proposal = directory.components["text"].proposal
    notes = []
    if proposal is not None:
        rows = f"{proposal['rows']:,} rows with token ids" if "rows" in proposal else "every token"
        notes.append(f"a proposal head is stored: {rows}")
    roles = Counter(role for use in directory.uses for role in use.auxiliaries)
    notes += [f"auxiliary {plain(role)} stands in {count} Uses" for role, count in sorted(roles.items())]
    return notes


def _description(opened: OpenedModel) -> str | None:
    if opened.family is None or opened.family.describe is None or opened.checkpoint is None:
        return None
    return opened.family.describe(opened.checkpoint)
