"""Which implementation runs Gated DeltaNet: on a GPU kernels, one kind for short rows and one for long ones; elsewhere
batched torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from ninfer_kernels import norm
from ninfer_kernels.device import gpu_route

from . import batched, reference
from .layer import Layer, Parts, Tape
from .rows import Rows


def step(
    mixed: Tensor, ab: Tensor, layer: Layer, parts: Parts, at: int, rows: Rows, tape: Tape | None = None
) -> Tensor:
    """``reference.step``."""
    if (gpu := _kernels(mixed, ab, layer, rows, tape)) is not None:
        return gpu.step(mixed, ab, layer, parts, at, rows, tape)  # type: ignore[no-any-return]
    return reference.composed(batched, norm.gated_rms_norm, mixed, ab, layer, parts, at, rows, tape)


def fold(tape: Tape, parts: Parts, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.fold``."""
    if tape.shared is not None:
        gpu = gpu_route(parts.addresses, __package__)
        assert gpu is not None
        gpu.fold(tape, parts, rows, kept)
        return
    reference.fold_each(batched, tape, parts, rows, kept)


def keep_last(x_TN: Tensor, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.keep_last``."""
    gpu = gpu_route(x_TN, __package__)
    if gpu is not None and gpu.serves_last(x_TN, part):
        gpu.keep_last(x_TN, part, rows, kept)
        return
    reference.keep_last(x_TN, part, rows, kept)


def _kernels(mixed: Tensor, ab: Tensor, layer: Layer, rows: Rows, tape: Tape | None) -> ModuleType | None:
    """The Triton route where it serves such a step."""
    gpu = gpu_route(mixed, __package__)
    if gpu is not None and gpu.serves(mixed, ab, layer, rows, tape):
        return gpu
    if rows.uploaded is not None:
        heads = f"{layer.key_dim} by {layer.value_dim}"
        raise RuntimeError(f"a recorded step of {rows.width} tokens a row needs a kernel for heads of {heads}")
    return None
