"""Random numbers in place of a checkpoint, made on the device: for measurements at true shapes, and for tests."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api import EncodedTensor
from ninfer_core.api.nn import Embedding, Linear, Runtime
from ninfer_core.api.weights import Shape
from ninfer_core.errors import InvariantError

from .embedding import DenseEmbedding
from .linear import DenseLinear


class RandomWeights:
    """``api.nn.Weights``: dense matrices that keep the size of what they multiply, small numbers for the rest.

    A parameter's numbers depend on the seed, its name and the device alone. ``matrix_bytes``: of all matrices made, a
    token table counted when it serves as the head.
    """

    def __init__(self, runtime: Runtime, seed: int = 0) -> None:
        self.runtime, self.seed = runtime, seed
        self.dtype = torch.float32 if runtime.reference else runtime.dtype
        self.matrix_bytes = 0
        self._tables: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: Shape) -> Tensor:
        """fp32, about 0.1."""
        return self._random(name, shape, 0.1, torch.float32)

    def linear(self, names: str | Sequence[str], shapes: Shape | Sequence[Shape]) -> Linear:
        """One operation over the rows of all ``names``; a table that was asked for before is used as it is."""
        if isinstance(names, str):
            names, shapes = (names,), (shapes,)  # type: ignore[assignment]
        if len(names) == 1 and names[0] in self._tables:
            weight = self._tables[names[0]]
        else:
            weight = self._stack(list(zip(names, shapes, strict=True)))  # type: ignore[arg-type]
        self.matrix_bytes += weight.numel() * weight.element_size()
        return DenseLinear(weight)

    def embedding(self, name: str, shape: Shape) -> Embedding:
        table = self._tables[name] = self._random(name, shape, 1.0, self.dtype)
        return DenseEmbedding(table)

    def parts(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        raise InvariantError(f"{name}: random weights have no stored form")

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
