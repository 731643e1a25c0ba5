"""A ``.ninfer`` artifact as a checkpoint: bindings become parts of parameters, resources become bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ninfer_core.api import EncodedTensor, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .container import Container
from .directory import ElementRange, TensorObject, binding_of, elements
from .formats import LAYOUT as DIRECT
from .names import plain, quoted, shaped
from .resources import check_resource
from .stored import Piece, encoded_size, known_format

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
TENSOR_ALIGNMENT = 256  # of tensor objects in the payload, in bytes
HARMLESS_AUXILIARIES = frozenset({"activation_input_divisor"})
"""Auxiliaries a 16-bit activation path may ignore; any other changes what the stored matrix means."""


class ArtifactCheckpoint:
    """The text model of an open container. Objects are interpreted when a parameter is asked for."""

    def __init__(self, container: Container, formats: Registry[WeightFormat]) -> None:
        """Raises ArtifactError without a ``text`` component or an architecture in its config."""
        self.container = container
        self.path = container.path
        self._formats = formats
        components = container.directory.components
        if "text" not in components:
            table = "; this is an n-gram table artifact" if "ngram" in components else ""
            raise ArtifactError(f"{self.path}: no text component{table}")
        self.config: Mapping[str, Any] = components["text"].config
        self.architecture = _architecture(self.config, self.path)
        self.name: str | None = container.directory.metadata.get("name")

    def names(self) -> Iterable[str]:
        return self.container.directory.bindings.keys()

    def has(self, name: str) -> bool:
        return name in self.container.directory.bindings

    def parameter(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        return tuple(piece.read() for piece in self.pieces(name, shape))

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Parts with whole rows each; a parameter cut inside rows, which only direct formats allow, is one piece."""
        binding = binding_of(self.container.directory, self.path, name, shape)
        self._check_uses(name)
        parents = [self._parent(part.object) for part in binding.parts]
        if len(parents) == 1 and parents[0].shape == shape and binding.elements == elements(shape):
            return (self._whole(parents[0]),)
        if all(parent.layout == DIRECT for parent in parents):
            return self._direct(name, shape, binding.parts, parents)
        return tuple(self._rows(name, shape, part, parent) for part, parent in zip(binding.parts, parents, strict=True))

    def resources(self) -> Mapping[str, int]:
        directory = self.container.directory
        return {role: directory.objects[name].bytes for role, name in directory.components["text"].resources.items()}

    def resource(self, role: str) -> bytes | None:
        """The content, checked to be what its role promises (UTF-8, a JSON object)."""
        data = self.container.resource("text", role)
        if data is not None:
            check_resource(role, data, f"{self.path}: text")
        return data

    def close(self) -> None:
        self.container.close()

    def _parent(self, name: str) -> TensorObject:
        """A tensor object whose format is installed and whose size and place are right (rows 24-27)."""
        item = self.container.tensor_object(name)
        form = known_format(self._formats, self.path, name, item.format, item.layout)
        # no installed layout shares divisors between rows
        if item.divisors != 1:
            raise ArtifactError(f"{self.path}: {plain(name)}: invalid divisor count {item.divisors}")
        size = encoded_size(form, self.path, name, item.shape)
        if item.bytes != size or item.offset % TENSOR_ALIGNMENT:
            raise ArtifactError(
                f"{self.path}: {plain(name)}: expected {size} bytes at {TENSOR_ALIGNMENT}-byte alignment, "
                f"got bytes={item.bytes}, offset={item.offset}"
            )
        return item

    def _check_uses(self, name: str) -> None:
        for use in self.container.directory.uses_of.get(name, ()):
            for role in use.auxiliaries:
                if role not in HARMLESS_AUXILIARIES:
                    raise ArtifactError(
                        f"{self.path}: Use {plain(name)}@{plain(use.input)}: auxiliary {quoted(role)} is not supported"
                    )

    def _piece(
        self, key: tuple[Any, ...], parent: TensorObject, shape: Shape, size: int, read: Callable[[], EncodedTensor]
    ) -> Piece:
        return Piece(
            key=key,
            origin=parent.id,
            format=parent.format,
            layout=parent.layout,
            shape=shape,
            bytes=size,
            read=read,
        )

    def _whole(self, parent: TensorObject) -> Piece:
        return self._piece((parent.id,), parent, parent.shape, parent.bytes, partial(self._read, parent))

    def _read(self, parent: TensorObject) -> EncodedTensor:
        data = as_tensor(self.container.object_bytes(parent.id))
        return EncodedTensor(format=parent.format, layout=parent.layout, shape=parent.shape, data=data)

    def _rows(self, name: str, shape: Shape, part: ElementRange, parent: TensorObject) -> Piece:
        """Whole rows of a matrix; what block formats can be cut into."""
        width = parent.shape[-1] if parent.shape else 1
        if len(shape) != 2 or parent.shape[1:] != shape[1:] or part.begin % width or part.end % width:
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: range [{part.begin},{part.end}] of {plain(parent.id)} "
                f"{shaped(parent.shape)} is not whole rows of {shaped(shape)}"
            )
        rows = range(part.begin // width, part.end // width)
        if len(rows) == parent.shape[0]:
            return self._whole(parent)
        form = self._formats[parent.format]
        taken = (len(rows), width)
        size = encoded_size(form, self.path, parent.id, taken)
        key = (parent.id, part.begin, part.end)
        return self._piece(key, parent, taken, size, lambda: form.take_rows(self._read(parent), rows))

    def _direct(
        self, name: str, shape: Shape, parts: tuple[ElementRange, ...], parents: list[TensorObject]
    ) -> tuple[Piece, ...]:
        """Elements of direct formats: a piece per range when the ranges are whole rows, else all joined."""
        width = elements(shape[1:])
        sizes = [part.end - part.begin for part in parts]
        if len(parts) > 1 and not any(size % width for size in sizes):
            return tuple(
                self._elements((part,), parent, (size // width, *shape[1:]))
                for part, parent, size in zip(parts, parents, sizes, strict=True)
            )
        if len({parent.format for parent in parents}) > 1:
            raise ArtifactError(f"{self.path}: parameter {quoted(name)}: parts of several formats share a row")
        return (self._elements(parts, parents[0], shape),)

    def _elements(self, parts: tuple[ElementRange, ...], parent: TensorObject, shape: Shape) -> Piece:
        key = (shape, *((part.object, part.begin, part.end) for part in parts))
        word = parent.bytes // elements(parent.shape)
        read = partial(self._read_elements, parts, parent, shape, word)
        return self._piece(key, parent, shape, word * elements(shape), read)

    def _read_elements(
        self, parts: tuple[ElementRange, ...], parent: TensorObject, shape: Shape, word: int
    ) -> EncodedTensor:
        import torch

        found = []
        for part in parts:
            item = self.container.tensor_object(part.object)
            view = self.container.read_range(
                item.offset + part.begin * word, (part.end - part.begin) * word, holds=plain(part.object)
            )
            found.append(as_tensor(view))
        data = found[0] if len(found) == 1 else torch.cat(found)
        return EncodedTensor(format=parent.format, layout=parent.layout, shape=shape, data=data)


def as_tensor(view: memoryview) -> Tensor:
    """A flat uint8 tensor over the same memory, which it keeps alive."""
    import torch

    return torch.frombuffer(view, dtype=torch.uint8)


def _architecture(config: Mapping[str, Any], path: str) -> str:
    if "architectures" not in config:
        raise ArtifactError(f'{path}: text config: missing member "architectures"')
    found = config["architectures"]
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str) or not found[0]:
        raise ArtifactError(f"{path}: text config: architectures must be a list of one name")
    return found[0]
