"""One door to every model on disk: an artifact, or a foreign checkpoint through its importer and family."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_core.api import Checkpoint, Importer, ImportPlan, ModelFamily, Source
from ninfer_core.errors import ArtifactError
from ninfer_core.plugins import Plugins

from .artifact import ArtifactCheckpoint
from .container import Container, looks_like_artifact
from .directory import elements
from .imported import ImportedCheckpoint
from .names import plain, quoted
from .resources import check_tokens
from .rules import broken_rules
from .stored import StoredCheckpoint, UnknownFormat

__all__ = ["ArtifactCheckpoint", "Facts", "ImportedCheckpoint", "checkpoint_facts", "open_checkpoint"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Sizes of a checkpoint; what two parameters share counts once."""

    parameters: int  # elements
    weight_bytes: int
    formats: Mapping[str, int]  # format -> bytes, the largest first


def open_checkpoint(path: str, plugins: Plugins) -> tuple[ModelFamily, Checkpoint]:
    """``open_stored``; what its family leaves out of a foreign checkpoint is logged."""
    family, checkpoint = open_stored(path, plugins)
    for warning in warnings_of(checkpoint):
        import structlog

        structlog.get_logger().warning("import_warning", model=path, detail=warning)
    return family, checkpoint


def check_path(path: str, plugins: Plugins) -> None:
    """Raise the ArtifactError of a path that nothing here opens; costs what importers need to recognise a file."""
    if not looks_like_artifact(path):
        _importer(path, plugins)


def open_stored(path: str, plugins: Plugins) -> tuple[ModelFamily, StoredCheckpoint]:
    """The family of a model and its parameters, none of them read yet.

    Every parameter of the family's inventory is known to be there, in a shape and an installed format that fit. Raises
    ArtifactError for a path nothing can open, a damaged file or an unknown architecture.
    """
    opened = open_model(path, plugins)
    try:
        if opened.refusal is not None:
            raise opened.refusal
        assert opened.family is not None and opened.checkpoint is not None
        for problem in bind(opened.family, opened.checkpoint, most=1):
            missing = _broken(plugins) if isinstance(problem, UnknownFormat) else ""
            raise ArtifactError(f"{problem}{missing}")
    except BaseException:
        opened.close()
        raise
    return opened.family, opened.checkpoint


def warnings_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What a family left out of a foreign checkpoint, by name."""
    return checkpoint.plan.warnings if isinstance(checkpoint, ImportedCheckpoint) else ()


@dataclass(kw_only=True, slots=True)
class OpenedModel:
    """What could be opened, for a reader that wants to show a model it cannot load."""

    container: Container | None = None
    source: Source | None = None
    importer: Importer | None = None
    family: ModelFamily | None = None
    checkpoint: StoredCheckpoint | None = None
    refusal: ArtifactError | None = None  # why there is no family or checkpoint

    def close(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()
        elif self.container is not None:
            self.container.close()


def open_model(path: str, plugins: Plugins) -> OpenedModel:
    """Open the file itself, and its family as far as there is one; ArtifactError when the file cannot be read."""
    if looks_like_artifact(path):
        opened = OpenedModel(container=Container(path))
        assert opened.container is not None
        try:
            checkpoint = ArtifactCheckpoint(opened.container, plugins.weight_formats)
            opened.family = _family(plugins, path, checkpoint.architecture, None)
            opened.checkpoint = checkpoint
        except ArtifactError as error:
            opened.refusal = error
        return opened
    importer = _importer(path, plugins)
    opened = OpenedModel(importer=importer, source=importer.open(path))
    assert opened.source is not None
    try:
        opened.family = _family(plugins, path, opened.source.architecture, opened.source.kind)
        plan = _adapted(opened.family, opened.source)
        opened.checkpoint = ImportedCheckpoint(opened.source, plan, plugins.weight_formats)
    except ArtifactError as error:
        opened.refusal = error
    return opened


def bind(family: ModelFamily, checkpoint: StoredCheckpoint, *, most: int = 20) -> list[ArtifactError]:
    """What stops ``family`` from being built from ``checkpoint``: the first ``most`` reasons."""
    problems: list[ArtifactError] = []
    try:
        wanted = family.inventory(checkpoint.config)
    except ArtifactError as error:
        return [_placed(error, checkpoint.path)]
    for name, shape in wanted.items():
        if len(problems) == most:
            return problems
        try:
            checkpoint.pieces(name, tuple(shape))
        except ArtifactError as error:
            problems.append(error)
    if isinstance(checkpoint, ArtifactCheckpoint):
        problems += broken_rules(family, checkpoint)
        try:
            _check_tokenizer(checkpoint)
        except ArtifactError as error:
            problems.append(error)
    return problems[:most]


def checkpoint_facts(checkpoint: Checkpoint) -> Facts:
    """Sizes for ``/v1/models`` and ``ninfer inspect``; zeros for a checkpoint without stored tensors."""
    seen: dict[Hashable, tuple[str, int, int]] = {}
    if isinstance(checkpoint, ArtifactCheckpoint):
        directory = checkpoint.container.directory
        for binding in directory.bindings.values():
            for part in binding.parts:
                item = checkpoint.container.tensor_object(part.object)
                seen[item.id] = (item.format, item.bytes, elements(item.shape))
    elif isinstance(checkpoint, ImportedCheckpoint):
        for name, recipe in checkpoint.plan.parameters.items():
            for piece in checkpoint.pieces(name, recipe.shape):
                seen[piece.key] = (piece.format, piece.bytes, elements(piece.shape))
    formats: dict[str, int] = {}
    for format_name, size, _ in seen.values():
        formats[format_name] = formats.get(format_name, 0) + size
    return Facts(
        parameters=sum(count for _, _, count in seen.values()),
        weight_bytes=sum(formats.values()),
        formats=dict(sorted(formats.items(), key=lambda item: -item[1])),
    )


def _importer(path: str, plugins: Plugins) -> Importer:
    for importer in plugins.importers:
        if importer.claims(path):
            return importer
    if os.path.isdir(path):
        what = "not a model folder: it has no config.json"
    elif not os.path.exists(path):
        what = "no such file or folder"
    else:
        what = "not a model file that is known here"
    known = ", ".join(plugins.importers.names()) or "none"
    raise ArtifactError(f"{path}: {what} (a .ninfer artifact, or an importer's: {known}){_broken(plugins)}")


def _family(plugins: Plugins, path: str, architecture: str, kind: str | None) -> ModelFamily:
    """Whoever serves an artifact's architecture, or understands a source's (``kind``)."""
    installed: set[str] = set()
    for family in plugins.model_families:
        understood = family.architectures if kind is None else family.sources.get(kind, ())
        if architecture in understood:
            return family
        installed.update(understood)
    known = ", ".join(sorted(installed)) or "none"
    raise ArtifactError(
        f"{path}: architecture {quoted(architecture)} is not supported (installed: {known}){_broken(plugins)}"
    )


def _broken(plugins: Plugins) -> str:
    return "".join(f"; plugin {record.name!r} did not load: {record.reason}" for record in plugins.broken())


def _adapted(family: ModelFamily, source: Source) -> ImportPlan:
    try:
        return family.adapt(source)
    except ArtifactError as error:
        raise _placed(error, source.path) from None


def _placed(error: ArtifactError, path: str) -> ArtifactError:
    """The same refusal, beginning with the file it is about."""
    return error if str(error).startswith(path) else ArtifactError(f"{plain(path)}: {error}")


def _check_tokenizer(checkpoint: ArtifactCheckpoint) -> None:
    """Resources that are there must be sound; which ones a model needs, its family says."""
    found: dict[str, bytes] = {}
    for role in checkpoint.resources():
        if (data := checkpoint.resource(role)) is not None:
            found[role] = data
    vocab_size: Any = checkpoint.config.get("vocab_size")
    if "tokenizer.json" in found and type(vocab_size) is int:
        check_tokens(found, vocab_size, checkpoint.path)
