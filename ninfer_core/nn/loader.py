"""From a checkpoint to the operations of a model, reading each parameter once.

What a matrix becomes: with ``--reference-ops`` fp32 weights; else the weight format's own packed route on the device;
where it has none, on a CPU fp32 weights (a bf16 GEMM is several times slower than fp32 there), on a GPU weights in the
dtype of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from ninfer_core.api import Checkpoint, EncodedTensor, WeightFormat
from ninfer_core.api.nn import Embedding, Linear, Runtime
from ninfer_core.api.weights import Shape
from ninfer_core.errors import ArtifactError, InvariantError, UnknownChoice
from ninfer_core.registry import Registry
from ninfer_core.weights.checkpoint import checkpoint_facts
from ninfer_core.weights.formats import words

from .embedding import DenseEmbedding, PackedEmbedding, StoredEmbedding
from .linear import DenseLinear, StackedLinear
from .staging import Staging, UploadFacts, staging_for
from .stored_input import ChangedInputLinear, meant_rows

DECODE_ELEMENTS = 1 << 22
"""A big tensor is decoded this many elements at a time (16 MiB of fp32), so that no second dense copy exists."""

PLAIN = {"bf16": "bfloat16", "fp32": "float32"}
"""Formats whose stored words are numbers of a torch dtype: what goes to a device needs no decoding."""

Stored = tuple[WeightFormat, EncodedTensor]


class CheckpointWeights:
    """``api.nn.Weights`` over a checkpoint.

    ``weight_formats`` decode what the checkpoint stores; ArtifactError for a format nobody offers. ``progress`` hears
    (stored bytes read so far, bytes in all), each parameter counted once. Packed and fp32 weights may stay views of the
    checkpoint's files, so the checkpoint stays open as long as the model lives. ``finish`` is called when everything
    has been read, or after a failure.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weight_formats: Registry[WeightFormat],
        runtime: Runtime,
        progress: Callable[[int, int], None] | None = None,
        staging: Staging | None = None,
    ) -> None:
        """``staging``: the way to the device; None: what its kind needs."""
        self.checkpoint = checkpoint
        self.weight_formats = weight_formats
        self.runtime = runtime
        self.progress = progress
        self.on_cpu = runtime.device.type == "cpu"
        self.dense_dtype = torch.float32 if runtime.reference or self.on_cpu else runtime.dtype
        self.staging = staging or staging_for(runtime.device)
        self.bytes_read = 0
        self.bytes_total = checkpoint_facts(checkpoint).weight_bytes if progress else 0
        self._counted: set[str] = set()
        self._tables: dict[str, Linear] = {}
        self.decoded_bytes: dict[str, int] = {}  # by stored format: of what ``dense`` made, as it lies on the device

    def tensor(self, name: str, shape: Shape) -> Tensor:
        """A small parameter, decoded, in fp32 on the model's device: a copy that outlives the files."""
        decoded = [decoded_as_meant(*stored).reshape(-1) for stored in self._stored(name, shape)]
        flat = torch.cat(decoded) if len(decoded) > 1 else decoded[0]
        return self._sent(flat.reshape(shape))

    def linear(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear:
        """One operation over the rows of all ``names``, in order. A table already on the device is used as it is."""
        wanted = list(_pairs(names, shapes))
        if len(wanted) == 1 and wanted[0][0] in self._tables:
            return self._tables[wanted[0][0]]
        stored = [pair for name, shape in wanted for pair in self._stored(name, shape)]
        runs = groupby(stored, key=lambda pair: (self._packed(pair[0]) is not None and pair[0].name, id(pair[1].input)))
        operations = [self._operation(list(run)) for _, run in runs]
        return operations[0] if len(operations) == 1 else StackedLinear(operations)

    def dense(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Tensor:
        """The rows of all ``names`` in one matrix, decoded."""
        stored = [pair for name, shape in _pairs(names, shapes) for pair in self._stored(name, shape)]
        matrix = self._dense(stored, as_meant=True)
        for weight_format, tensor in stored:
            if weight_format.name not in PLAIN:
                size = matrix.element_size() * tensor.shape[0] * tensor.shape[1]
                self.decoded_bytes[weight_format.name] = self.decoded_bytes.get(weight_format.name, 0) + size
        return matrix

    def packed(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear | None:
        """One operation on the stored bytes of all ``names``, where they are of one format that has one."""
        return self._packed_whole([pair for name, shape in _pairs(names, shapes) for pair in self._stored(name, shape)])

    def embedding(self, name: str, shape: Shape) -> Embedding:
        """A token table; a head tied to it is ``linear`` of the same name."""
        stored = self._stored(name, shape)
        if self.on_cpu:
            return StoredEmbedding(stored, self.runtime.dtype)
        packed = self._packed_whole(stored)
        if packed is not None and hasattr(packed, "take_rows"):
            self._tables[name] = packed
            return PackedEmbedding(packed, self.runtime.dtype)
        table = self._dense(stored, as_meant=True)
        self._tables[name] = DenseLinear(table)
        return DenseEmbedding(table)

    def parts(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        """The stored form of a matrix that multiplies its input as it is."""
        stored = self._stored(name, shape)
        if any(tensor.input is not None for _, tensor in stored):
            raise ArtifactError(
                f"{self.checkpoint.path}: {name}: a matrix stored for a changed input is not supported here"
            )
        return tuple(tensor for _, tensor in stored)

    def _packed(self, weight_format: WeightFormat) -> Callable[[Sequence[EncodedTensor]], Linear | None] | None:
        """What keeps matrices of this format as they are stored, where something does."""
        if self.runtime.reference:
            return None
        if self.on_cpu:
            return weight_format.cpu_linear
        return weight_format.gpu_linear and partial(self._built_there, weight_format.gpu_linear)

    def _built_there(
        self, make: Callable[[Sequence[EncodedTensor], torch.device], Linear | None], tensors: Sequence[EncodedTensor]
    ) -> Linear | None:
        """What ``make`` makes of the stored bytes, which are sent to the device first."""
        return make([replace(tensor, data=self._sent(tensor.data)) for tensor in tensors], self.runtime.device)

    def _sent(self, values: Tensor) -> Tensor:
        """A copy on the device."""
        out = torch.empty(values.shape, dtype=values.dtype, device=self.runtime.device)
        self._copy(out, values)
        return out

    def _copy(self, target: Tensor, source: Tensor) -> None:
        if self.staging is None:
            target.copy_(source)
        else:
            self.staging.copy(target, source)

    def _packed_whole(self, stored: list[Stored]) -> Linear | None:
        """Rows of one format for an input as it is, kept as they are stored, where something does."""
        packed = self._packed(stored[0][0])
        if packed is None or any(form is not stored[0][0] or tensor.input is not None for form, tensor in stored):
            return None
        return packed([tensor for _, tensor in stored])

    def _operation(self, run: list[Stored]) -> Linear:
        """Rows of one input: the fast route of their format, or dense weights."""
        packed = self._packed(run[0][0])
        operation = packed([tensor for _, tensor in run]) if packed is not None else None
        if operation is None:
            operation = DenseLinear(self._dense(run))
        change = run[0][1].input
        return operation if change is None else ChangedInputLinear(operation, change, self.runtime.device)

    def _dense(self, stored: Sequence[Stored], *, as_meant: bool = False) -> Tensor:
        """Decoded rows of all parts in one [N, K] tensor on the device; ``as_meant``: of the matrix they stand for."""
        if len(stored) == 1 and self.on_cpu and stored[0][0].name == "fp32" and stored[0][1].input is None:
            return stored[0][0].decode(stored[0][1])
        rows = sum(tensor.shape[0] for _, tensor in stored)
        out = torch.empty(rows, stored[0][1].shape[1], dtype=self.dense_dtype, device=self.runtime.device)
        start = 0
        for weight_format, tensor in stored:
            change = tensor.input if as_meant else None
            plain = change is None and self.staging is not None and weight_format.name in PLAIN
            for piece in word_rows(weight_format, tensor) if plain else decoded_rows(weight_format, tensor):
                meant = piece if change is None else meant_rows(change, piece)
                self._copy(out[start : start + len(piece)], meant)
                start += len(piece)
        return out

    def finish(self) -> UploadFacts:
        """Everything is where it belongs; what it took to bring it there."""
        return UploadFacts() if self.staging is None else self.staging.finish()

    def _stored(self, name: str, shape: Shape) -> list[Stored]:
        parts = self.checkpoint.parameter(name, shape)
        if name not in self._counted:
            self._counted.add(name)
            self.bytes_read += sum(part.data.numel() for part in parts)
            if self.progress is not None:
                self.progress(min(self.bytes_read, self.bytes_total), self.bytes_total)
        return [(self._format_of(name, part), part) for part in parts]

    def _format_of(self, name: str, part: EncodedTensor) -> WeightFormat:
        try:
            weight_format = self.weight_formats[part.format]
        except UnknownChoice as unknown:
            raise ArtifactError(f"{self.checkpoint.path}: {name}: {unknown}") from None
        if weight_format.layout != part.layout:
            raise ArtifactError(
                f"{self.checkpoint.path}: {name}: format {part.format} is stored in layout {part.layout!r}; "
                f"expected {weight_format.layout!r}"
            )
        return weight_format


def decoded_as_meant(weight_format: WeightFormat, tensor: EncodedTensor) -> Tensor:
    """A stored tensor as what it stands for, fp32."""
    decoded = weight_format.decode(tensor)
    return decoded if tensor.input is None else meant_rows(tensor.input, decoded)


def decoded_rows(weight_format: WeightFormat, tensor: EncodedTensor) -> Iterator[Tensor]:
    """The rows of a matrix in fp32, as stored, some at a time."""
    return map(weight_format.decode, _some_rows(weight_format, tensor))


def word_rows(weight_format: WeightFormat, tensor: EncodedTensor) -> Iterator[Tensor]:
    """The same of a plain format in its own dtype: views of what is stored, as far as it is aligned."""
    for some in _some_rows(weight_format, tensor):
        yield words(some, PLAIN[weight_format.name]).view(some.shape)


def _some_rows(weight_format: WeightFormat, tensor: EncodedTensor) -> Iterator[EncodedTensor]:
    rows, columns = tensor.shape
    step = max(1, DECODE_ELEMENTS // max(columns, 1))
    if rows <= step:
        yield tensor
        return
    for start in range(0, rows, step):
        yield weight_format.take_rows(tensor, range(start, min(start + step, rows)))


def _pairs(names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Iterator[tuple[str, Shape]]:
    """``names`` with their shapes, whether one or several were given."""
    if isinstance(names, str):
        names, shapes = (names,), (shapes,)  # type: ignore[assignment]
    if len(names) != len(shapes):
        raise InvariantError(f"{len(names)} names and {len(shapes)} shapes")
    for name, shape in zip(names, shapes, strict=True):
        yield name, tuple(shape)  # type: ignore[arg-type]
