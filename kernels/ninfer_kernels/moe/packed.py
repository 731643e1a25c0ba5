"""The launches for experts that stay packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ninfer_kernels import pdl, turns
from ninfer_kernels.activation.gpu import swiglu
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2
from ninfer_kernels.tiled_linear import TiledLinear
from ninfer_kernels.tiled_linear.gpu import WARPS, constants
from ninfer_kernels.tiled_linear.tiles import CHUNK, TILE_ROWS
from ninfer_kernels.tuning import Blocks

from . import few, many
from .layer import FEW_TOKENS, PackedExperts, PackedStack
from .many_blocks import tile_rows
from .packed_kernel import decode_chosen_kernel, packed_down_kernel, packed_gate_up_kernel

SOME_TOKENS = 64
"""Up to here a few tokens at a time are faster than making numbers of all their experts, and take no scratch memory."""

SCRATCH_BYTES = 256 << 20
"""Of numbers made at a time for many tokens."""

PROGRAMS = 1024
"""That one token's gates and ups are shared out to, about: what fills a GPU."""


def gate_up_blocks(stack: PackedStack, k: int) -> Blocks:
    """Programs that share a tile. No number of tokens among what they depend on: it must not change what a token
    becomes."""
    chunks, tiles = stack.tiles.chunks, k * stack.shape[1] // TILE_ROWS
    each = cdiv(chunks, max(1, min(chunks, PROGRAMS // tiles)))
    return {"splits": cdiv(chunks, each), "num_stages": _stages(each)}


def down_blocks(stack: PackedStack) -> Blocks:
    return {"num_stages": _stages(stack.tiles.chunks)}


def _stages(chunks: int) -> int:
    """What is done in one step goes to registers directly."""
    return 1 if chunks == 1 else 2


def gate_up(
    x: Tensor, experts: PackedExperts, ids: Tensor, shared: Tensor, blocks: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """The inner row of every pair [T * k, F], and SwiGLU of ``shared`` [T, 2F'], the shared expert's."""
    (T, N), C, stack, tiles = x.shape, ids.shape[1] - 1, experts.gate_up, experts.gate_up.tiles
    F, shared_width = stack.shape[1] // 2, shared.shape[1] // 2
    blocks = blocks or gate_up_blocks(stack, C)
    splits, across = blocks["splits"], 2 * F // TILE_ROWS
    h = torch.empty(T * C, F, dtype=x.dtype, device=x.device)
    h_shared = torch.empty(T, shared_width, dtype=x.dtype, device=x.device)
    sums = torch.empty(T * C, across, splits, TILE_ROWS, dtype=torch.float32, device=x.device)
    launch_kernel(
        packed_gate_up_kernel, (across, splits, T * (C + 1)),
        x, tiles.codes, tiles.more, tiles.scales, tiles.factors, ids, h, sums, experts.tickets, shared, h_shared,
        x.stride(0), T, tiles.chunks, cdiv(tiles.chunks, splits),
        N=N, F=F, F_SHARED=shared_width, C=C, SPLITS=splits, WHOLE=N % CHUNK == 0, STAGES=blocks["num_stages"],
        PIECE=next_power_of_2(cdiv(shared_width, across * splits)), num_warps=WARPS,
        **constants(tiles.format, x), **pdl.options(x),
    )  # fmt: skip
    return h, h_shared


def down(
    h: Tensor, experts: PackedExperts, shares: Tensor, ids: Tensor, said_shared: Tensor, blocks: Blocks | None = None
) -> Tensor:
    """The shares of what every slot says, [T, N]. h: [T * k, F]; said_shared: [T, N], which may be written by a launch
    that this one runs beside."""
    (T, S), (_, N, F), tiles = ids.shape, experts.down.shape, experts.down.tiles
    blocks = blocks or down_blocks(experts.down)
    said = torch.empty(T * (S - 1), N, dtype=h.dtype, device=h.device)
    y = torch.empty(T, N, dtype=h.dtype, device=h.device)
    turn = turns.turn(said)
    launch_kernel(
        packed_down_kernel, (N // TILE_ROWS, T * (S - 1)),
        h, tiles.codes, tiles.more, tiles.scales, tiles.factors, ids, shares, said, said_shared, experts.tickets, y,
        tiles.chunks, N=N, F=F, C=S - 1, CP=next_power_of_2(S - 1),
        WHOLE=F % CHUNK == 0, STAGES=blocks["num_stages"], num_warps=WARPS,
        TURN=turn, CACHE=".cg" if turn == turns.BESIDE else "", **constants(tiles.format, h), **pdl.options(h),
    )  # fmt: skip
    return y


def mix_few(x: Tensor, experts: PackedExperts, k: int) -> Tensor:
    """FEW_TOKENS at most."""
    read = as_read(x)
    with beside(experts.shared_gate_up):
        turns.turn()  # choosing lets the next launch in when its input is complete, as the first of several does
        shares, ids = few.choose(x, experts, k)
        shared = experts.shared_gate_up(read)
    h, h_shared = gate_up(read, experts, ids, shared)
    with beside(experts.shared_down):
        return down(h, experts, shares, ids, experts.shared_down(h_shared))


def mix(x: Tensor, experts: PackedExperts, k: int) -> Tensor:
    """``reference.sparse`` for any number of tokens, in the products' type; up to SOME_TOKENS one has the bits it has
    alone."""
    if len(x) > SOME_TOKENS:
        return mix_many(x, experts, k)
    if len(x) <= FEW_TOKENS:
        return mix_few(x, experts, k)
    return torch.cat([mix_few(some, experts, k) for some in x.split(FEW_TOKENS)])


def beside(operation: object) -> AbstractContextManager[object]:
    """Turns with an operation that is a single launch which takes one; any other may be several in order."""
    return turns.together() if isinstance(operation, TiledLinear) else nullcontext()


def decoded(stack: PackedStack, chosen: many.Chosen, like: Tensor) -> Iterator[tuple[many.Chosen, Tensor]]:
    """The matrices of some experts at a time in ``like``'s type, [experts, rows, columns], and who goes to them: ids
    count from the first of them. Matrices nobody goes to are not made; each piece takes the place of the one before."""
    (E, rows, K), tiles = stack.shape, stack.tiles
    step = min(E, max(1, SCRATCH_BYTES // (rows * K * like.itemsize)))
    scratch = torch.empty(step, rows, K, dtype=like.dtype, device=like.device)
    for first in range(0, E, step):
        count = min(step, E - first)
        out, each = scratch[:count], rows // TILE_ROWS
        launch_kernel(
            decode_chosen_kernel, (count * each, tiles.chunks),
            chosen.ends, tiles.codes, tiles.more, tiles.scales, tiles.factors, out, first, count * rows, K,
            tiles.chunks, TILES=each, num_warps=4, **constants(tiles.format, like),
        )  # fmt: skip
        # an expert before the first becomes one after the last, whose tiles are left out
        owners = (chosen.owners - first).bitwise_and_(0x7FFFFFFF)
        yield chosen._replace(owners=owners, ends=chosen.ends[first : first + count]), out


def mix_many(x: Tensor, experts: PackedExperts, k: int) -> Tensor:
    """Sorted by expert; as many tokens as there are."""
    read, F = as_read(x), experts.down.shape[2]
    tile = tile_rows(read)
    chosen = many.choose(x, experts, k, tile)
    P = len(chosen.tokens)
    h, said = (torch.empty(P, width, dtype=read.dtype, device=x.device) for width in (F, x.shape[1]))
    for some, matrices in decoded(experts.gate_up, chosen, read):
        many.gate_up_into(h, read, matrices, some, tile)
    for some, matrices in decoded(experts.down, chosen, read):
        many.down_into(said, h, matrices, some, tile)
    return many.add_up(said, experts.shared_down(swiglu(experts.shared_gate_up(read))), chosen)


def as_read(x: Tensor) -> Tensor:
    """What is multiplied; experts are chosen by x itself."""
    return x.bfloat16() if x.is_cuda else x
