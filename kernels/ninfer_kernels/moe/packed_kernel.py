"""Experts that stay packed, in Triton: for a few tokens every pair of a token and an expert on its own, for many the
numbers of those experts that somebody goes to.

A program makes numbers of a tile's bytes and multiplies them by the one row of its token on the tensor cores, the other
columns being zeros: products are bound by memory, and a token has the same bits whatever stands beside it.

Legend: T tokens, N width, C experts a token, S = C + 1 slots (``choose_kernel``), F inner width, TILE rows of a tile.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin, begin_in_turn, end_in_turn
from ninfer_kernels.splits import added_up, comes_last
from ninfer_kernels.tiled_linear.kernel import decode_kernel, summed
from ninfer_kernels.tiled_linear.unpack import TILE

from .few_kernel import gated

COLUMNS_OF_A_DOT: tl.constexpr = tl.constexpr(8)  # as few as the tensor cores take


@triton.jit
def one_row(
    x, codes, more, scales, at, first, last, row, stride_x, K,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, ASM: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """A tile's products with row ``row`` of x over chunks ``first`` to ``last``, [TILE]; ``at``: the first one in
    memory."""
    o_t = row + tl.zeros([COLUMNS_OF_A_DOT], tl.int32)
    m_t = tl.arange(0, COLUMNS_OF_A_DOT) == 0
    b_acc = summed(
        x, codes, more, scales, at, first, last, o_t, m_t, K, stride_x,
        UNPACK, COLUMNS, GROUP, CODE_BYTES, MORE_BYTES, SCALED, ASM, COLUMNS_OF_A_DOT, WHOLE, STAGES, CACHE,
    )  # fmt: skip
    return tl.sum(b_acc, 1)


@triton.jit(do_not_specialize=["T", "chunks", "per_split"])
def packed_gate_up_kernel(
    x, codes, more, scales, factors, ids, h, sums, tickets, shared, h_shared, stride_x, T, chunks, per_split,
    N: tl.constexpr, F: tl.constexpr, F_SHARED: tl.constexpr, C: tl.constexpr,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, FACTORS: tl.constexpr, ASM: tl.constexpr,
    SPLITS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, PIECE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile of a pair's gate or up over ``per_split`` chunks. x: [T, N]; ids: [T, S]; h: [T * C, F].

    The programs of both tiles that make the same inner elements leave their sums in ``sums`` [T * C, F / TILE, 2,
    SPLITS, TILE] fp32; the last to come, as ``tickets`` [T * C, F / TILE] tells, adds them up and has the inner
    elements. After the pairs come T more: SwiGLU of the shared expert, PIECE elements a program. shared: [T, 2
    F_SHARED]; h_shared: [T, F_SHARED].
    """
    begin(PDL)
    TILES: tl.constexpr = F // TILE
    i_n, i_s, i_p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if i_p >= T * C:
        o_i = (i_n * SPLITS + i_s) * PIECE + tl.arange(0, PIECE)
        m_i = o_i < F_SHARED
        at = shared + (i_p - T * C) * (2 * F_SHARED) + o_i
        b_g, b_u = tl.load(at, mask=m_i, other=0.0), tl.load(at + F_SHARED, mask=m_i, other=0.0)
        tl.store(h_shared + (i_p - T * C) * F_SHARED + o_i, gated(b_g, b_u, h_shared), mask=m_i)
    else:
        i_t, i_h, i_i = i_p // C, i_n // TILES, i_n % TILES
        e = tl.load(ids + i_t * (C + 1) + i_p % C)
        first = i_s * per_split
        last = tl.minimum(first + per_split, chunks)
        tile = e.to(tl.int64) * (2 * TILES) + i_n
        b_sum = one_row(
            x, codes, more, scales, tile * chunks + first, first, last, i_t, stride_x, N,
            UNPACK, COLUMNS, GROUP, CODE_BYTES, MORE_BYTES, SCALED, ASM, WHOLE, STAGES, "",
        )  # fmt: skip
        o_r = tl.arange(0, TILE)
        p_sums = sums + (i_p * TILES + i_i) * (2 * SPLITS * TILE) + o_r
        tl.store(p_sums + (i_h * SPLITS + i_s) * TILE, b_sum)
        if comes_last(tickets + i_p * TILES + i_i, 2 * SPLITS):
            b_g = added_up(p_sums, TILE, SPLITS, o_r < TILE)
            b_u = added_up(p_sums + SPLITS * TILE, TILE, SPLITS, o_r < TILE)
            if FACTORS:
                at_f = factors + (e.to(tl.int64) * (2 * TILES) + i_i) * TILE + o_r
                b_g *= tl.load(at_f)
                b_u *= tl.load(at_f + F)
            tl.store(h + i_p * F + i_i * TILE + o_r, gated(b_g, b_u, h))


@triton.jit(do_not_specialize=["chunks"])
def packed_down_kernel(
    h, codes, more, scales, factors, ids, shares, said, said_shared, tickets, y, chunks,
    N: tl.constexpr, F: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, FACTORS: tl.constexpr, ASM: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, TURN: tl.constexpr, CACHE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile of what a pair's expert says, rounded, in ``said`` [T * C, N]; the last of a token's pairs to come, as
    ``tickets`` [T, N / TILE] tells, adds up the shares of them all and of ``said_shared`` [T, N], which may be written
    meanwhile. h: [T * C, F]; shares, ids: [T, S]; y: [T, N]. CACHE: how what was just written is read."""
    begin_in_turn(TURN, PDL)
    TILES: tl.constexpr = N // TILE
    i_n, i_p = tl.program_id(0), tl.program_id(1)
    i_t, o_r = i_p // C, tl.arange(0, TILE)
    o_n = i_n * TILE + o_r
    e = tl.load(ids + i_t * (C + 1) + i_p % C, cache_modifier=CACHE)
    tile = e.to(tl.int64) * TILES + i_n
    b_sum = one_row(
        h, codes, more, scales, tile * chunks, 0, chunks, i_p, F, F,
        UNPACK, COLUMNS, GROUP, CODE_BYTES, MORE_BYTES, SCALED, ASM, WHOLE, STAGES, CACHE,
    )  # fmt: skip
    if FACTORS:
        b_sum *= tl.load(factors + tile * TILE + o_r)
    tl.store(said + i_p * N + o_n, b_sum.to(said.dtype.element_ty))
    end_in_turn(TURN, PDL)
    if comes_last(tickets + i_t * TILES + i_n, C):
        o_c = tl.arange(0, CP)
        m_c = o_c < C
        at = said + (i_t * C + o_c)[:, None] * N + o_n[None, :]
        b_said = tl.load(at, mask=m_c[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
        b_share = tl.load(shares + i_t * (C + 1) + o_c, mask=m_c, other=0.0, cache_modifier=".cg")
        b_last = tl.load(said_shared + i_t * N + o_n, cache_modifier=".cg").to(tl.float32)
        b_y = tl.sum(b_share[:, None] * b_said, 0)
        b_y += tl.load(shares + i_t * (C + 1) + C, cache_modifier=".cg") * b_last
        tl.store(y + i_t * N + o_n, b_y.to(y.dtype.element_ty))


@triton.jit(do_not_specialize=["first", "rows", "chunks"])
def decode_chosen_kernel(
    ends, codes, more, scales, factors, out, first, rows, K, chunks, TILES: tl.constexpr,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, FACTORS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """``decode_kernel`` of the experts from ``first`` on, TILES each, that have places; nothing is made of the others.
    ends: [E], the place after an expert's last."""
    e = first + tl.program_id(0) // TILES
    before = tl.load(ends + e - 1, mask=e > 0, other=0)
    if tl.load(ends + e) > before:
        decode_kernel(
            codes, more, scales, factors, out, first * TILES, rows, K, chunks,
            UNPACK, COLUMNS, GROUP, CODE_BYTES, MORE_BYTES, SCALED, FACTORS, ASM,
        )  # fmt: skip
