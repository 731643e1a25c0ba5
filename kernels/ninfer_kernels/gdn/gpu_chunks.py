"""The launches of the chunked form, for steps in place whose rows are long."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2

from .chunk_kernel import conv_rows_kernel, gated_norm_kernel, prepare_kernel, walk_kernel
from .layer import Layer, Parts
from .rows import CHUNK, Rows

WALKED_ROWS = 64  # of a state, in a program: what a warp group multiplies at once
NORMED_ROWS = 32  # heads of tokens, in a program


def serves(layer: Layer) -> bool:
    """Whether the kernels take it: a key dimension that is a power of two and that the products' blocks fit."""
    K = layer.key_dim
    return 16 <= K <= 256 and K & (K - 1) == 0


def step(mixed: Tensor, ab: Tensor, layer: Layer, parts: Parts, at: int, rows: Rows) -> Tensor:
    """``reference.step`` in place: convolution, what needs no state, the walk over the chunks, the norm."""
    T, G, H, K, V = mixed.shape[0], layer.key_heads, layer.value_heads, layer.key_dim, layer.value_dim
    history, state, on, chunks = parts.histories[at], parts.states[at], rows.on_device, rows.chunks
    N, taps = chunks.firsts.shape[0], layer.convolution.shape[0]
    options: dict[str, Any] = {"G": G, "H": H, "K": K, **pdl.options(mixed)}
    exact = mixed.dtype is torch.float32
    precision = "ieee" if exact else "tf32"

    qk, v = mixed.new_empty(N, 2 * G, CHUNK, K), mixed.new_empty(N, H, V, CHUNK)
    launch_kernel(
        conv_rows_kernel, (2 * G + H, N),
        mixed, history, layer.convolution, qk, v, chunks.firsts, chunks.counts, chunks.rows, on.firsts, on.slots,
        mixed.stride(0), V=V, BD=next_power_of_2(max(K, V)), TAPS=taps, num_warps=8, **options,
    )  # fmt: skip
    inverse, within = mixed.new_empty(2, N, H, CHUNK, CHUNK)
    decay, strength = mixed.new_empty(2, N, H, CHUNK, dtype=torch.float32)
    launch_kernel(
        prepare_kernel, (H, N),
        qk, ab, layer.a_log, layer.dt_bias, inverse, within, decay, strength, chunks.firsts, chunks.counts,
        ab.stride(0), PRECISION=precision, num_warps=2, **options,
    )  # fmt: skip
    o = mixed.new_empty(T, H, V)
    BV = min(WALKED_ROWS, max(16, next_power_of_2(V)))
    launch_kernel(
        walk_kernel, (H * cdiv(V, BV), len(rows.slots)),
        qk, v, mixed, history, state, inverse, within, decay, strength, o,
        on.firsts, on.widths, on.slots, chunks.row_firsts, mixed.stride(0),
        V=V, BV=BV, TAPS=taps, PRECISION=precision, STAGES=1 if exact else 3, num_warps=4, **options,
    )  # fmt: skip
    out = mixed.new_empty(T, H * V)
    launch_kernel(
        gated_norm_kernel, (cdiv(T * H, NORMED_ROWS),),
        o, mixed, layer.norm, out, T * H, mixed.stride(0), layer.channels, layer.eps,
        H=H, V=V, BV=next_power_of_2(V), BR=NORMED_ROWS, num_warps=4, **pdl.options(mixed),
    )  # fmt: skip
    return out
