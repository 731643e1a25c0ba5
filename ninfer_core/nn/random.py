"""Random numbers in place of a checkpoint, made on the device: for measurements at true shapes, and for tests."""

from __future__ import annotations

import math
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
            rows = sum(shape[0] for shape in shapes)  # type: ignore[index, misc]
            columns = shapes[0][1]  # type: ignore[index]
            weight = self._random(" ".join(names), (rows, columns), columns**-0.5, self.dtype)
        self.matrix_bytes += weight.numel() * weight.element_size()
        return DenseLinear(weight)

    def embedding(self, name: str, shape: Shape) -> Embedding:
        table = self._tables[name] = self._random(name, shape, 1.0, self.dtype)
        return DenseEmbedding(table)

    def parts(self, name: str, shape: Shape) -> tuple[EncodedTensor, ...]:
        raise InvariantError(f"{name}: random weights have no stored form")

    def _random(self, name: str, shape: Shape, scale: float, dtype: torch.dtype) -> Tensor:
        device = self.runtime.device
        generator = torch.Generator(device).manual_seed(self.seed + zlib.crc32(name.encode()))
        out = torch.empty(tuple(shape), dtype=dtype, device=device)
        if math.prod(shape):
            out.normal_(0.0, scale, generator=generator)
        return out
