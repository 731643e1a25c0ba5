"""The tensors of a foreign checkpoint on their way to recipes: present, of the right shape, each used or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninfer_core.api import ArtifactError, Recipe, SourceTensor


class Missing(ArtifactError):
    """A tensor that should be there is not."""


class Tensors:
    """The checkpoint's tensors, quantized ones as what they mean, and which of them have found their place."""

    def __init__(self, path: str, found: Mapping[str, SourceTensor]) -> None:
        self.path, self.found = path, found
        self.used: set[str] = set()

    def take(self, name: str, shape: Sequence[int]) -> str:
        """``name``, known to be there with that shape."""
        tensor = self.found.get(name)
        if tensor is None:
            raise Missing(f"{self.path}: tensor {name!r} is missing")
        if tuple(tensor.shape) != tuple(shape):
            raise ArtifactError(f"{self.path}: tensor {name!r} has shape {list(tensor.shape)}; expected {list(shape)}")
        self.used.add(name)
        return name

    def refuse(self, left: Sequence[str]) -> None:
        """ArtifactError for tensors that have no place here."""
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ArtifactError(f"{self.path}: tensor {left[0]!r}{more} is not part of a Qwen3.5 model")


def rows(tensor: str, first: int, count: int, columns: int) -> Recipe:
    """A run of rows of one tensor."""
    return Recipe(tensors=(tensor,), shape=(count, columns), rows=range(first, first + count))
