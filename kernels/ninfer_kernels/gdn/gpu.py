"""The launches of the Triton route. Signatures and results are the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2

from . import gpu_chunks
from .kernel import fold_kernel, last_kernel, step_kernel, tokens_kernel
from .layer import Layer, Parts, Tape
from .rows import Rows

FEW = 64  # tokens of a row that are walked one by one where a tape is kept
SHORT = 8  # and where none is: beyond them chunks are faster
WIDEST = 256  # dimension of a key or a value
STEP_ELEMENTS, FOLD_ELEMENTS = 4096, 2048  # of a state, in a warp
SEVERAL = 3  # tokens of a row from which on what needs no state is made for all of them at once
LAST_ELEMENTS = 1024  # of a row that is kept, for one program
STAGES = 3  # tokens on their way or walked over, where they are


def serves(mixed: Tensor, ab: Tensor, layer: Layer, rows: Rows, tape: Tape | None) -> bool:
    """Whether the kernels take it: heads of a size that registers hold, and no tape where rows are long."""
    if mixed.stride(1) != 1 or ab.stride(1) != 1 or not mixed.shape[0]:
        return False
    if tape is None and rows.width > SHORT:
        return gpu_chunks.serves(layer)
    return rows.width <= FEW and layer.key_dim <= WIDEST and layer.value_dim <= WIDEST


class Shared(NamedTuple):
    """The records of all layers, [layers, T, ...]: what the convolution read, keys of unit length, values, log decay
    and strength."""

    x: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    layer: Layer  # any: only its geometry counts


def step(
    mixed: Tensor, ab: Tensor, layer: Layer, parts: Parts, at: int, rows: Rows, tape: Tape | None = None
) -> Tensor:
    """``reference.step``; in place a provisional step and the fold of all it saw, or chunks where rows are long."""
    if tape is not None:
        return _step(mixed, ab, layer, parts, at, rows, tape, at)
    if rows.width > SHORT:
        return gpu_chunks.step(mixed, ab, layer, parts, at, rows)
    own = Tape.of(1)
    y = _step(mixed, ab, layer, parts, at, rows, own, 0)
    _fold(own, parts, at, 1, rows, rows.on_device.widths)
    return y


def _step(mixed: Tensor, ab: Tensor, layer: Layer, parts: Parts, at: int, rows: Rows, tape: Tape, place: int) -> Tensor:
    """Layer ``at``, which leaves record ``place`` of the tape."""
    T, H = mixed.shape[0], layer.value_heads
    if tape.shared is None:
        tape.shared = _room(mixed, layer, len(tape.records))
    history, state, on = parts.histories[at], parts.states[at], rows.on_device
    record = tape.records[place] = tuple(x[place] for x in tape.shared[:4])
    y = torch.empty(T, layer.value_width, dtype=mixed.dtype, device=mixed.device)
    # one number of warps for rounds of all widths: the sums of a token have one order
    options = {**_geometry(layer, STEP_ELEMENTS), **pdl.options(mixed)}
    several, q = rows.width >= SEVERAL, None
    if several:
        q = record[1].new_empty(T, layer.key_width)
        launch_kernel(
            tokens_kernel, (H, rows.width, len(rows.slots)),
            mixed, ab, layer.convolution, layer.a_log, layer.dt_bias, history, q, *record,
            on.firsts, on.widths, on.slots, mixed.stride(0), ab.stride(0), **options,
        )  # fmt: skip
    launch_kernel(
        step_kernel, (H, len(rows.slots)),
        mixed, ab, layer.convolution, layer.a_log, layer.dt_bias, layer.norm, history, state, y, q, *record,
        on.firsts, on.widths, on.slots, mixed.stride(0), ab.stride(0), layer.eps,
        SEVERAL=several, STAGES=STAGES if several else 1, **options,
    )  # fmt: skip
    return y


def _room(mixed: Tensor, layer: Layer, layers: int) -> Shared:
    T = mixed.shape[0]
    x, v = (mixed.new_empty(layers, T, width) for width in (layer.channels, layer.value_width))
    k, gates = (
        mixed.new_empty(layers, T, width, dtype=torch.float32) for width in (layer.key_width, 2 * layer.value_heads)
    )
    return Shared(x, k, v, gates, layer)


def fold(tape: Tape, parts: Parts, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.fold``, all layers in one launch."""
    _fold(tape, parts, 0, len(parts), rows, rows.counts(kept))


def _fold(tape: Tape, parts: Parts, first: int, layers: int, rows: Rows, counts: Tensor) -> None:
    x, k, v, gates, layer = tape.shared
    on = rows.on_device
    launch_kernel(
        fold_kernel, (layer.value_heads, len(rows.slots), layers),
        parts.addresses[:, first], parts.histories[first], parts.states[first], x, k, v, gates,
        on.firsts, counts, on.slots, x.shape[1], parts.addresses.stride(0),
        **_geometry(layer, FOLD_ELEMENTS), **pdl.options(x),
    )  # fmt: skip


def serves_last(x_TN: Tensor, part: Tensor) -> bool:
    """Whether the kernel takes them: rows that are contiguous."""
    return x_TN.numel() > 0 and x_TN.stride(1) == part.stride(1) == 1


def keep_last(x_TN: Tensor, part: Tensor, rows: Rows, kept: Sequence[int] | Tensor) -> None:
    """``reference.keep_last``."""
    N, on = x_TN.shape[1], rows.on_device
    launch_kernel(
        last_kernel, (cdiv(N, LAST_ELEMENTS), len(rows.slots)),
        x_TN, part, on.firsts, rows.counts(kept), on.slots, N, x_TN.stride(0), part.stride(0),
        BN=LAST_ELEMENTS, num_warps=4, **pdl.options(x_TN),
    )  # fmt: skip


def _geometry(layer: Layer, elements: int) -> dict[str, Any]:
    """A program holds the whole state of a head, a warp so many elements of it."""
    BD = next_power_of_2(max(layer.key_dim, layer.value_dim))
    return {
        "G": layer.key_heads,
        "H": layer.value_heads,
        "K": layer.key_dim,
        "V": layer.value_dim,
        "BD": BD,
        "TAPS": layer.convolution.shape[0],
        "num_warps": min(max(BD * BD // elements, 1), 16),
    }
