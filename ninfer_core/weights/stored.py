"""Parameters before they are read: what each part is, and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ninfer_core.api import Checkpoint, EncodedTensor, ModelFamily, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .names import plain, quoted, shaped

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One part of a parameter, in row order. Pieces with equal ``key`` are the same bytes."""

    key: Hashable
    origin: str  # the object or source tensors it comes from
    format: str
    layout: str
    shape: Shape
    bytes: int
    read: Callable[[], EncodedTensor]
    divisors: int = 1
    columns: tuple[int, ...] | None = None  # what each stored column multiplies; None: its own


class StoredCheckpoint(Checkpoint, Protocol):
    """A checkpoint that can say what it holds without reading it."""

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """The parts ``parameter`` gives, unread; ArtifactError when it is missing, misshapen or of no known format."""

    def resources(self) -> Mapping[str, int]:
        """Role -> size in bytes."""

    def drop_pages(self) -> None:
        """Give back the memory of what was read from mapped files; what was handed out stays readable."""


def full_inventory(family: ModelFamily, checkpoint: Checkpoint) -> dict[str, Shape]:
    """Every parameter the family knows of: the text model's, and those of each companion the checkpoint has."""
    found = {name: tuple(shape) for name, shape in family.inventory(checkpoint.config).items()}
    for component in checkpoint.companions:
        if component in family.companions:
            companion = family.companions[component](checkpoint.config)
            found |= {name: tuple(shape) for name, shape in companion.items()}
    return found


class UnknownFormat(ArtifactError):
    """A stored format no installed plugin offers."""


def known_format(
    formats: Registry[WeightFormat], path: str, name: str, format_name: str, layout: str | None
) -> WeightFormat:
    """The installed format; UnknownFormat (row 24) when there is none, or when it does not go with ``layout``."""
    if format_name not in formats or (layout is not None and formats[format_name].layout != layout):
        with_layout = "" if layout is None else f" with layout {quoted(layout)}"
        raise UnknownFormat(f"{path}: {plain(name)}: format {quoted(format_name)}{with_layout} is not supported")
    return formats[format_name]


def encoded_size(form: WeightFormat, path: str, name: str, shape: Shape) -> int:
    """The exact size in bytes; ArtifactError (row 26) for a shape the layout cannot hold."""
    try:
        return form.encoded_bytes(shape)
    except ValueError as error:
        raise ArtifactError(
            f"{path}: {plain(name)}: layout {form.layout} cannot hold shape {shaped(shape)} ({plain(error)})"
        ) from None
