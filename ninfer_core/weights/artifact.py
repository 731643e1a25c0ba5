"""A ``.ninfer`` artifact as a checkpoint: bindings become parts of parameters, resources become bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ninfer_core.api import EncodedTensor, StoredInput, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .auxiliaries import Auxiliaries
from .container import Container
from .directory import ElementRange, TensorObject, binding_of, elements
from .formats import LAYOUT as DIRECT
from .names import plain, quoted, shaped
from .resources import check_resource
from .stored import Piece, encoded_size, known_format

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
FindInput = Callable[[], "StoredInput | None"]
TENSOR_ALIGNMENT = 256  # of tensor objects in the payload, in bytes


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
        self.companions: Mapping[str, Mapping[str, Any]] = {
            name: component.config for name, component in components.items() if name != "text"
        }
        self.architecture = _architecture(self.config, self.path)
        self.name: str | None = container.directory.metadata.get("name")
        self._auxiliaries = Auxiliaries(container)

    def names(self) -> Iterable[str]:
        return self.container.directory.bindings.keys()

    def has(self, name: str) -> bool:
        return name in self.container.directory.bindings

    def parameter(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        return tuple(piece.read() for piece in self.pieces(name, shape))

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Parts with whole rows each; a parameter cut inside rows, which only direct formats allow, is one piece."""
        binding = binding_of(self.container.directory, self.path, name, shape)
        parents = [self._parent(part.object) for part in binding.parts]
        self._auxiliaries.check(name, shape, parents)
        found = partial(self._auxiliaries.of, name, shape, parents)
        if len(parents) == 1 and parents[0].shape == shape and binding.elements == elements(shape):
            return (self._whole(parents[0], found),)
        if all(parent.layout == DIRECT for parent in parents):
            return self._direct(name, shape, binding.parts, parents, found)
        return tuple(
            piece
            for part, parent in zip(binding.parts, parents, strict=True)
            for piece in self._rows(name, shape, part, parent, found)
        )

    def resources(self) -> Mapping[str, int]:
        directory = self.container.directory
        return {role: directory.objects[name].bytes for role, name in directory.components["text"].resources.items()}

    def resource(self, role: str) -> bytes | None:
        """The content, checked to be what its role promises (UTF-8, a JSON object)."""
        data = self.container.resource("text", role)
        if data is not None:
            check_resource(role, data, f"{self.path}: text")
        return data

    def drop_pages(self) -> None:
        self.container.drop_pages()

    def close(self) -> None:
        self.container.close()

    def _parent(self, name: str) -> TensorObject:
        """A tensor object whose format is installed and whose size and place are right (rows 24-27)."""
        item = self.container.tensor_object(name)
        form = known_format(self._formats, self.path, name, item.format, item.layout)
        size = encoded_size(form, self.path, name, item.shape) + form.divisor_bytes * (item.divisors - 1)
        if not _divides(form, item):
            raise ArtifactError(f"{self.path}: {plain(name)}: invalid divisor count {item.divisors}")
        if item.bytes != size or item.offset % TENSOR_ALIGNMENT:
            raise ArtifactError(
                f"{self.path}: {plain(name)}: expected {size} bytes at {TENSOR_ALIGNMENT}-byte alignment, "
                f"got bytes={item.bytes}, offset={item.offset}"
            )
        return item

    def _piece(
        self,
        key: tuple[Any, ...],
        parent: TensorObject,
        shape: Shape,
        size: int,
        read: Callable[[], EncodedTensor],
        found: FindInput,
    ) -> Piece:
        return Piece(
            key=key,
            origin=parent.id,
            format=parent.format,
            layout=parent.layout,
            shape=shape,
            bytes=size,
            divisors=parent.divisors if shape == parent.shape else 1,
            read=lambda: _with_input(read(), found()),
        )

    def _whole(self, parent: TensorObject, found: FindInput) -> Piece:
        return self._piece((parent.id,), parent, parent.shape, parent.bytes, partial(self._read, parent), found)

    def _read(self, parent: TensorObject) -> EncodedTensor:
        data = as_tensor(self.container.object_bytes(parent.id))
        tensor = EncodedTensor(
            format=parent.format, layout=parent.layout, shape=parent.shape, data=data, divisors=parent.divisors
        )
        check = self._formats[parent.format].check
        if check is not None:
            try:
                check(tensor)
            except ValueError as error:
                raise ArtifactError(f"{self.path}: {plain(parent.id)}: {error}") from None
        return tensor

    def _rows(self, name: str, shape: Shape, part: ElementRange, parent: TensorObject, found: FindInput) -> list[Piece]:
        """Whole rows of a matrix, which is what block formats can be cut into; a piece has one divisor."""
        width = parent.shape[-1] if parent.shape else 1
        if len(shape) != 2 or parent.shape[1:] != shape[1:] or part.begin % width or part.end % width:
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: range [{part.begin},{part.end}] of {plain(parent.id)} "
                f"{shaped(parent.shape)} is not whole rows of {shaped(shape)}"
            )
        rows = range(part.begin // width, part.end // width)
        if len(rows) == parent.shape[0]:
            return [self._whole(parent, found)]
        share = parent.shape[0] // parent.divisors
        cuts = [rows.start, *range((rows.start // share + 1) * share, rows.stop, share), rows.stop]
        return [self._row_piece(parent, range(a, b), found) for a, b in pairwise(cuts)]

    def _row_piece(self, parent: TensorObject, rows: range, found: FindInput) -> Piece:
        form = self._formats[parent.format]
        taken = (len(rows), parent.shape[1])
        size = encoded_size(form, self.path, parent.id, taken)
        key = (parent.id, rows.start, rows.stop)
        return self._piece(key, parent, taken, size, partial(self._read_rows, parent, rows), found)

    def _read_rows(self, parent: TensorObject, rows: range) -> EncodedTensor:
        """Rows of a parent. Where they had to be copied, the file's pages are not kept beside them."""
        whole = self._read(parent)
        taken = self._formats[parent.format].take_rows(whole, rows)
        if taken.data.untyped_storage().data_ptr() != whole.data.untyped_storage().data_ptr():
            del whole
            self.container.drop_pages()
        return taken

    def _direct(
        self,
        name: str,
        shape: Shape,
        parts: tuple[ElementRange, ...],
        parents: list[TensorObject],
        found: FindInput,
    ) -> tuple[Piece, ...]:
        """Elements of direct formats: a piece per range when the ranges are whole rows, else all joined."""
        width = elements(shape[1:])
        sizes = [part.end - part.begin for part in parts]
        if len(parts) > 1 and not any(size % width for size in sizes):
            return tuple(
                self._elements((part,), parent, (size // width, *shape[1:]), found)
                for part, parent, size in zip(parts, parents, sizes, strict=True)
            )
        if len({parent.format for parent in parents}) > 1:
            raise ArtifactError(f"{self.path}: parameter {quoted(name)}: parts of several formats share a row")
        return (self._elements(parts, parents[0], shape, found),)

    def _elements(self, parts: tuple[ElementRange, ...], parent: TensorObject, shape: Shape, found: FindInput) -> Piece:
        key = (shape, *((part.object, part.begin, part.end) for part in parts))
        word = parent.bytes // elements(parent.shape)
        read = partial(self._read_elements, parts, parent, shape, word)
        return self._piece(key, parent, shape, word * elements(shape), read, found)

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


def _with_input(tensor: EncodedTensor, found: StoredInput | None) -> EncodedTensor:
    return tensor if found is None else replace(tensor, input=found)


def _divides(form: WeightFormat, item: TensorObject) -> bool:
    """Whether the divisors are as many as the format allows for these rows (row 27)."""
    if item.divisors == 1:
        return True
    share, rest = divmod(item.shape[0], item.divisors)
    return form.divisor_rows > 0 and rest == 0 and share % form.divisor_rows == 0


def _architecture(config: Mapping[str, Any], path: str) -> str:
    if "architectures" not in config:
        raise ArtifactError(f'{path}: text config: missing member "architectures"')
    found = config["architectures"]
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str) or not found[0]:
        raise ArtifactError(f"{path}: text config: architectures must be a list of one name")
    return found[0]
