"""What the JSON directory of a ``.ninfer`` artifact says, checked in full by ``directory_parser`` and immutable.

Records: ``spec/artifact.md`` §3. Formats and layouts are names here; whoever interprets an object
resolves them. Offsets and sizes count bytes of the logical payload, ranges count logical elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ninfer_core.errors import ArtifactError

from .names import quoted, shaped

POLICIES = ("A16Only", "AllowA8", "AllowA4")


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorObject:
    id: str
    offset: int
    bytes: int
    shape: tuple[int, ...]
    format: str
    layout: str
    divisors: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceObject:
    id: str
    offset: int
    bytes: int
    encoding: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementRange:
    """Elements ``[begin, end)`` of one tensor object, in C order."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """``whole``: the ``object`` form, which also promises that the shapes agree."""

    parts: tuple[ElementRange, ...]
    whole: bool

    @property
    def elements(self) -> int:
        return sum(part.end - part.begin for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    parameter: str
    input: str
    policy: str | None
    auxiliaries: Mapping[str, Binding]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    config: Mapping[str, Any]
    target: str | None
    resources: Mapping[str, str]  # role -> id of a resource object
    proposal: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    path: str | None  # a sibling's name; None: the entry file
    payload_bytes: int


@dataclass(frozen=True, kw_only=True)
class Directory:
    components: Mapping[str, Component]
    objects: Mapping[str, TensorObject | ResourceObject]  # in payload order
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileEntry, ...]
    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @cached_property
    def payload_bytes(self) -> int:
        return sum(file.payload_bytes for file in self.files)

    @cached_property
    def uses_of(self) -> Mapping[str, tuple[Use, ...]]:
        """Parameter -> its uses."""
        found: dict[str, list[Use]] = {}
        for use in self.uses:
            found.setdefault(use.parameter, []).append(use)
        return {name: tuple(uses) for name, uses in found.items()}


def elements(shape: tuple[int, ...]) -> int:
    """The product of the dimensions; 1 for a scalar."""
    product = 1
    for n in shape:
        product *= n
    return product


def binding_of(directory: Directory, file: str, name: str, shape: tuple[int, ...]) -> Binding:
    """The binding of parameter ``name``, known to hold exactly ``shape``; ArtifactError (row 36) otherwise."""
    binding = directory.bindings.get(name)
    if binding is None:
        raise ArtifactError(f"{file}: missing parameter {quoted(name)}")
    agrees = binding.elements == elements(shape)
    if agrees and binding.whole:
        parent = directory.objects[binding.parts[0].object]
        agrees = isinstance(parent, TensorObject) and parent.shape == shape
    if not agrees:
        raise ArtifactError(
            f"{file}: parameter {quoted(name)}: needs shape {shaped(shape)}, "
            f"artifact provides {binding.elements} elements{_whole_shape(directory, binding)}"
        )
    return binding


def _whole_shape(directory: Directory, binding: Binding) -> str:
    parent = directory.objects[binding.parts[0].object]
    return f" as {shaped(parent.shape)}" if binding.whole and isinstance(parent, TensorObject) else ""
