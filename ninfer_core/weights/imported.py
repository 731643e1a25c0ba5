"""A foreign checkpoint as logical parameters: a Source read through the ImportPlan its family made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ninfer_core.api import EncodedTensor, ImportPlan, Recipe, Source, SourceTensor, StoredInput, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from .directory import elements
from .formats import LAYOUT as DIRECT
from .formats import SOURCE_DECODERS, quantize_fp32
from .names import quoted, shaped
from .stored import Piece, encoded_size, known_format

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
ROWS_ARE_BYTES = (DIRECT, "gguf_blocks_v1")
"""Layouts in which the bytes of stacked matrices are the stacked bytes."""


class ImportedCheckpoint:
    """Parameters keep the source's encoding wherever the recipe allows it; fp16 becomes fp32, exactly."""

    def __init__(self, source: Source, plan: ImportPlan, formats: Registry[WeightFormat]) -> None:
        self.source, self.plan = source, plan
        self.path = source.path
        self.architecture = plan.architecture
        self.config: Mapping[str, Any] = plan.config
        self.companions = plan.companions
        self.name = source.name
        self._formats = formats

    def names(self) -> Iterable[str]:
        return self.plan.parameters.keys()

    def has(self, name: str) -> bool:
        return name in self.plan.parameters

    def parameter(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        return tuple(piece.read() for piece in self.pieces(name, shape))

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        recipe = self.plan.parameters.get(name)
        if recipe is None:
            raise ArtifactError(f"{self.path}: missing parameter {quoted(name)}")
        if recipe.shape != shape:
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: needs shape {shaped(shape)}, "
                f"the source provides {shaped(recipe.shape)}"
            )
        tensors = [self._tensor(tensor, name) for tensor in recipe.tensors]
        self._check_coverage(name, recipe, tensors)
        kept = {self._kept_format(tensor) for tensor in tensors}
        if recipe.transform is not None or (recipe.store is not None and kept != {recipe.store}):
            return (self._computed(name, recipe, tensors, kept),)
        if recipe.rows is not None:
            return (self._reordered(name, recipe, tensors, kept),)
        if len(tensors) == 1:
            piece = self._kept(tensors[0], shape)
            return (piece if recipe.columns is None else self._with_columns(name, piece, recipe.columns),)
        return tuple(self._kept(tensor, tensor.shape) for tensor in tensors)

    def resources(self) -> Mapping[str, int]:
        return {role: len(data) for role, data in self.source.resources.items()}

    def resource(self, role: str) -> bytes | None:
        return self.source.resources.get(role)

    def drop_pages(self) -> None:
        if self.source.drop_pages is not None:
            self.source.drop_pages()

    def close(self) -> None:
        """Forget the source; its files close with the last tensor that looks into them."""
        self.source = Source(
            kind=self.source.kind, path=self.path, architecture=self.source.architecture, config=self.source.config
        )

    def _tensor(self, name: str, parameter: str) -> SourceTensor:
        found = self.plan.derived.get(name) or self.source.tensors.get(name)
        if found is None:
            raise ArtifactError(f"{self.path}: missing tensor {quoted(name)} (for parameter {quoted(parameter)})")
        return found

    def _kept_format(self, tensor: SourceTensor) -> str:
        """The artifact format that holds a source tensor's values."""
        if tensor.format in SOURCE_DECODERS:
            return "fp32"
        known_format(self._formats, self.path, f"tensor {quoted(tensor.name)}", tensor.format, None)
        return tensor.format

    def _check_coverage(self, name: str, recipe: Recipe, tensors: list[SourceTensor]) -> None:
        if recipe.transform is not None:
            return
        if recipe.rows is not None:
            shapes = [_matrix(tensor.shape) for tensor in tensors]
            height = sum(shape[0] for shape in shapes)
            agrees = all(shape[1:] == recipe.shape[1:] for shape in shapes) and len(recipe.rows) == recipe.shape[0]
            first, last = _ends(recipe.rows)
            agrees = agrees and first >= 0 and last < height
        else:
            agrees = sum(elements(tensor.shape) for tensor in tensors) == elements(recipe.shape)
            if len(tensors) > 1:
                agrees = agrees and all(tensor.shape[1:] == recipe.shape[1:] for tensor in tensors)
        if not agrees:
            found = ", ".join(f"{quoted(tensor.name)} {shaped(tensor.shape)}" for tensor in tensors)
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: needs shape {shaped(recipe.shape)}, the source has {found}"
            )

    def _piece(
        self, key: tuple[Any, ...], origin: str, format_name: str, shape: Shape, read: Callable[[], EncodedTensor]
    ) -> Piece:
        form = self._formats[format_name]
        return Piece(
            key=key,
            origin=origin,
            format=format_name,
            layout=form.layout,
            shape=shape,
            bytes=encoded_size(form, self.path, origin, shape),
            read=read,
        )

    def _kept(self, tensor: SourceTensor, shape: Shape) -> Piece:
        """One source tensor as it is; only a direct format can take another shape."""
        format_name = self._kept_format(tensor)
        if shape != tensor.shape and self._formats[format_name].layout != DIRECT:
            raise ArtifactError(
                f"{self.path}: tensor {quoted(tensor.name)}: needs shape {shaped(shape)}, has {shaped(tensor.shape)}"
            )
        read = partial(self._read_kept, tensor, shape)
        return self._piece((tensor.name, shape, format_name), tensor.name, format_name, shape, read)

    def _with_columns(self, name: str, piece: Piece, columns: Sequence[int]) -> Piece:
        """A matrix as it is stored, its columns known to belong elsewhere."""
        if len(piece.shape) != 2 or sorted(columns) != list(range(piece.shape[1])):
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: its columns are no permutation of {shaped(piece.shape[1:])}"
            )
        own = tuple(columns)
        return replace(piece, key=(piece.key, own), columns=own, read=partial(_read_with_columns, piece.read, own))

    def _reordered(self, name: str, recipe: Recipe, tensors: list[SourceTensor], kept: set[str]) -> Piece:
        """Encoded rows in another order, so that nothing is rounded again."""
        format_name = min(kept)
        if len(kept) > 1 or (len(tensors) > 1 and self._formats[format_name].layout not in ROWS_ARE_BYTES):
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: rows of several tensors stored as "
                f"{', '.join(sorted(kept))} cannot be reordered together"
            )
        key = (recipe.tensors, _hashable(recipe.rows), recipe.shape, format_name)
        read = partial(self._read_reordered, recipe, tensors)
        return self._piece(key, ", ".join(recipe.tensors), format_name, recipe.shape, read)

    def _computed(self, name: str, recipe: Recipe, tensors: list[SourceTensor], kept: set[str]) -> Piece:
        """A new tensor: transformed, or stored in another format than the source's.

        Without ``store`` it takes the source's direct format, or fp32 where the source has blocks or several formats.
        """
        format_name = recipe.store or min(kept)
        if recipe.store is None and (len(kept) > 1 or self._formats[format_name].layout != DIRECT):
            format_name = "fp32"
        form = known_format(self._formats, self.path, f"parameter {quoted(name)}", format_name, None)
        key = (recipe.tensors, recipe.shape, format_name, _hashable(recipe.rows), recipe.transform)
        read = partial(self._read_computed, name, recipe, tensors, form)
        return self._piece(key, ", ".join(recipe.tensors), format_name, recipe.shape, read)

    # reading

    def _read_kept(self, tensor: SourceTensor, shape: Shape) -> EncodedTensor:
        found = tensor.read()
        if found.format in SOURCE_DECODERS:
            found = quantize_fp32(SOURCE_DECODERS[found.format](found))
        return EncodedTensor(format=found.format, layout=found.layout, shape=shape, data=found.data)

    def _read_reordered(self, recipe: Recipe, tensors: list[SourceTensor]) -> EncodedTensor:
        import torch

        shapes = [_matrix(tensor.shape) for tensor in tensors]
        found = [self._read_kept(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        data = found[0].data if len(found) == 1 else torch.cat([part.data for part in found])
        rows = sum(shape[0] for shape in shapes)
        stacked = EncodedTensor(
            format=found[0].format, layout=found[0].layout, shape=(rows, *recipe.shape[1:]), data=data
        )
        assert recipe.rows is not None
        return self._formats[stacked.format].take_rows(stacked, recipe.rows)

    def _read_computed(
        self, name: str, recipe: Recipe, tensors: list[SourceTensor], form: WeightFormat
    ) -> EncodedTensor:
        import torch

        decoded = [self._decode(tensor) for tensor in tensors]
        x = decoded[0] if len(decoded) == 1 else torch.cat(decoded)
        if recipe.rows is not None:
            x = x.reshape(_matrix(x.shape)).index_select(0, torch.as_tensor(recipe.rows, dtype=torch.int64))
        if recipe.transform is not None:
            x = recipe.transform(x)
        if x.numel() != elements(recipe.shape):
            raise ArtifactError(
                f"{self.path}: parameter {quoted(name)}: needs shape {shaped(recipe.shape)}, "
                f"its transform gives {shaped(x.shape)}"
            )
        return encode(form, x.reshape(recipe.shape), f"{self.path}: parameter {quoted(name)}")

    def _decode(self, tensor: SourceTensor) -> Tensor:
        found = tensor.read()
        decode = SOURCE_DECODERS.get(found.format) or self._formats[found.format].decode
        return decode(found)


def _read_with_columns(read: Callable[[], EncodedTensor], columns: tuple[int, ...]) -> EncodedTensor:
    import torch

    return replace(read(), input=StoredInput(columns=torch.tensor(columns)))


def _matrix(shape: Iterable[int]) -> Shape:
    """A tensor of three or more dimensions as the matrix of all its rows."""
    shape = tuple(shape)
    return shape if len(shape) < 3 else (elements(shape[:-1]), shape[-1])


def _ends(rows: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest; a long range is not walked."""
    if isinstance(rows, range) and rows:
        return min(rows[0], rows[-1]), max(rows[0], rows[-1])
    return min(rows, default=0), max(rows, default=0)


def _hashable(rows: Sequence[int] | None) -> Hashable:
    return rows if rows is None or isinstance(rows, range) else tuple(rows)


def encode(form: WeightFormat, x: Tensor, where: str) -> EncodedTensor:
    """``x`` (fp32) in ``form``; ArtifactError (``where: ...``) when it cannot hold a value or has no encoder."""
    if form.quantize is None:
        raise ArtifactError(f"{where}: format {quoted(form.name)} has no encoder")
    try:
        return form.quantize(x)
    except ValueError as error:
        raise ArtifactError(f"{where}: cannot be stored as {form.name}: {error}") from None
