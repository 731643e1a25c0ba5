"""Random numbers in place of a checkpoint, made on the device: for measurements at true shapes, and for tests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor, WeightFormat
from ninfer_core.api.nn import Embedding, Linear, Runtime
from ninfer_core.api.weights import Shape
from ninfer_core.errors import InvariantError

from .embedding import DenseEmbedding, PackedEmbedding
from .linear import DenseLinear, StackedLinear

SLAB_ROWS = 256
"""Rows of a stored format that are made; a matrix repeats them, each beginning with a row of its own."""


class RandomWeights:
    """``api.nn.Weights``: matrices that keep the size of what they multiply, small numbers for the rest.

    A parameter's numbers depend on the seed, its name and the device alone. ``formats``: of the matrices that are to
    lie as a stored format has them; the others are dense. ``matrix_bytes``: of all matrices made, a token table counted
    when it serves as the head.
    """

    def __init__(self, runtime: Runtime, seed: int = 0, formats: Mapping[str, WeightFormat] | None = None) -> None:
        self.runtime, self.seed = runtime, seed
        self.formats = formats or {}
        self.dtype = torch.float32 if runtime.reference else runtime.dtype
        self.matrix_bytes = 0
        self._tables: dict[str, tuple[Linear, int]] = {}
        self._slabs: dict[tuple[str, int, float, int], EncodedTensor] = {}

    def tensor(self, name: str, shape: Shape) -> Tensor:
        """fp32, about 0.1."""
        return self._random(name, shape, 0.1, torch.float32)

    def linear(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear:
        """One operation over the rows of all ``names``; a table that was asked for before is used as it is."""
        if isinstance(names, str):
            names, shapes = (names,), (shapes,)  # type: ignore[assignment]
        if len(names) == 1 and names[0] in self._tables:
            operation, size = self._tables[names[0]]
            self.matrix_bytes += size
            return operation
        wanted: list[tuple[str, Shape]] = list(zip(names, shapes, strict=True))  # type: ignore[arg-type]
        runs = groupby(wanted, key=lambda pair: self._format(pair[0]))
        operations = [self._operation(form, list(run)) for form, run in runs]
        return operations[0] if len(operations) == 1 else StackedLinear(operations)

    def dense(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Tensor:
        if isinstance(names, str):
            names, shapes = (names,), (shapes,)  # type: ignore[assignment]
        matrix = self._stack(list(zip(names, shapes, strict=True)))  # type: ignore[arg-type]
        self.matrix_bytes += matrix.nbytes
        return matrix

    def packed(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear | None:
        if isinstance(names, str):
            names, shapes = (names,), (shapes,)  # type: ignore[assignment]
        wanted: list[tuple[str, Shape]] = list(zip(names, shapes, strict=True))  # type: ignore[arg-type]
        form = self._format(names[0])
        if form is None or any(self._format(name) is not form for name in names):
            return None
        return self._packed_counted(form, wanted)

    def embedding(self, name: str, shape: Shape) -> Embedding:
        form = self._format(name)
        if form is not None:
            packed = self._packed(form, [(name, shape)], 1.0)
            if hasattr(packed, "take_rows"):
                self._tables[name] = packed, form.encoded_bytes(shape)  # type: ignore[assignment]
                return PackedEmbedding(packed, self.dtype)
        table = self._random(name, shape, 1.0, self.dtype)
        self._tables[name] = DenseLinear(table), table.nbytes
        return DenseEmbedding(table)

    def parts(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        raise InvariantError(f"{name}: random weights have no stored form")

    def _format(self, name: str) -> WeightFormat | None:
        return None if self.runtime.reference else self.formats.get(name)

    def _operation(self, form: WeightFormat | None, wanted: Sequence[tuple[str, Shape]]) -> Linear:
        packed = None if form is None else self._packed_counted(form, wanted)
        if packed is not None:
            return packed
        weight = self._stack(wanted)
        self.matrix_bytes += weight.nbytes
        return DenseLinear(weight)

    def _packed_counted(self, form: WeightFormat, wanted: Sequence[tuple[str, Shape]]) -> Linear | None:
        """Matrices that keep the size of what they multiply."""
        packed = self._packed(form, wanted, wanted[0][1][1] ** -0.5)
        if packed is not None:
            self.matrix_bytes += sum(form.encoded_bytes(tuple(shape)) for _, shape in wanted)
        return packed

    def _packed(self, form: WeightFormat, wanted: Sequence[tuple[str, Shape]], scale: float) -> Linear | None:
        """The matrices in this format; None where nothing multiplies by it as it is stored."""
        device = self.runtime.device
        if device.type != "cpu":
            make = form.gpu_linear
            return None if make is None else make(_sent(self._stored(form, wanted, scale), device), device)
        return None if form.cpu_linear is None else form.cpu_linear(self._stored(form, wanted, scale))

    def _stored(self, form: WeightFormat, wanted: Sequence[tuple[str, Shape]], scale: float) -> list[EncodedTensor]:
        """The matrices by rows: each many times the same slab, begun where its name says."""
        out = []
        for name, (rows, columns) in wanted:
            first = (self.seed + zlib.crc32(name.encode())) % SLAB_ROWS
            turned = self._turned(form, columns, scale, first)
            out += [turned] * (rows // SLAB_ROWS)
            if rows % SLAB_ROWS:
                out.append(form.take_rows(turned, range(rows % SLAB_ROWS)))
        return out

    def _turned(self, form: WeightFormat, columns: int, scale: float, first: int) -> EncodedTensor:
        """The slab begun with row ``first``; there are fewer of them than a mixture has matrices."""
        key = (form.name, columns, scale, first)
        if key not in self._slabs:
            rows = [(first + i) % SLAB_ROWS for i in range(SLAB_ROWS)]
            self._slabs[key] = form.take_rows(self._slab(form, columns, scale), rows)
        return self._slabs[key]

    def _slab(self, form: WeightFormat, columns: int, scale: float) -> EncodedTensor:
        key = (form.name, columns, scale, -1)
        if key not in self._slabs:
            if form.quantize is None:
                raise InvariantError(f"{form.name} has no encoder, so that nothing can be stored in it")
            generator = torch.Generator().manual_seed(self.seed + columns)
            self._slabs[key] = form.quantize(torch.randn(SLAB_ROWS, columns, generator=generator) * scale)
        return self._slabs[key]

    def _stack(self, wanted: Sequence[tuple[str, Shape]]) -> Tensor:
        """The matrices by rows in one tensor, each with the numbers it has alone."""
        rows, columns = sum(shape[0] for _, shape in wanted), wanted[0][1][1]
        out = torch.empty(rows, columns, dtype=self.dtype, device=self.runtime.device)
        start = 0
        for name, shape in wanted:
            self._fill(name, out[start : start + shape[0]], columns**-0.5)
            start += shape[0]
        return out

    def _random(self, name: str, shape: Shape, scale: float, dtype: torch.dtype) -> Tensor:
        out = torch.empty(tuple(shape), dtype=dtype, device=self.runtime.device)
        self._fill(name, out, scale)
        return out

    def _fill(self, name: str, out: Tensor, scale: float) -> None:
        generator = torch.Generator(out.device).manual_seed(self.seed + zlib.crc32(name.encode()))
        if out.numel():
            out.normal_(0.0, scale, generator=generator)


def _sent(stored: Sequence[EncodedTensor], device: torch.device) -> list[EncodedTensor]:
    """The same on the device, what occurs several times sent once."""
    there = {id(tensor): replace(tensor, data=tensor.data.to(device)) for tensor in stored}
    return [there[id(tensor)] for tensor in stored]
