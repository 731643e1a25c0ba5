"""Stored matrices as factors and as tables, in Triton: bytes are read once and become numbers in registers.

How a format's bytes become numbers is a function of its own (UNPACK, ``unpack.py``).

Legend: T rows of activations, N outputs, K inputs, BT rows of activations of a program, TILE rows of a tile.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin, begin_in_turn, end_in_turn
from ninfer_kernels.splits import added_up, comes_last

from .unpack import TILE

CHUNK: tl.constexpr = tl.constexpr(256)  # columns


@triton.jit
def tile_scales(scales, at):
    """A group's scales of all rows of a tile, [TILE] fp32: two in each of 32 words."""
    b_s = tl.load(scales + at * (TILE // 2) + tl.arange(0, TILE // 2))
    first = b_s.to(tl.int16).to(tl.float16, bitcast=True)
    second = (b_s >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(first, second).permute(1, 0).reshape(TILE).to(tl.float32)


@triton.jit
def summed(
    x, codes, more, scales, at, first, last, o_t, m_t, K, stride_x,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, ASM: tl.constexpr, BT: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """A tile's products with BT rows over chunks ``first`` to ``last``, [TILE, BT]; ``at``: the first one in memory."""
    GROUPS: tl.constexpr = CHUNK // GROUP
    NUM: tl.constexpr = x.dtype.element_ty
    o_r, o_k = tl.arange(0, TILE), COLUMNS(GROUP)
    p_codes, p_more = codes + at * (TILE * CODE_BYTES), more + at * (TILE * MORE_BYTES)
    p_scales = scales + at * (GROUPS * TILE // 2)
    p_x = x + o_t[None, :].to(tl.int64) * stride_x + first * CHUNK + o_k[:, None]
    b_acc = tl.zeros([TILE, BT], tl.float32)
    for c in tl.range(first, last, num_stages=STAGES):
        for i in tl.static_range(GROUPS):
            b_w = UNPACK(p_codes, p_more, i, o_r, NUM, ASM)
            m_x = m_t[None, :] if WHOLE else m_t[None, :] & (o_k + (c * CHUNK + i * GROUP) < K)[:, None]
            b_x = tl.load(p_x + i * GROUP, mask=m_x, other=0.0, cache_modifier=CACHE)
            if SCALED:
                b_acc += tl.dot(b_w, b_x) * tile_scales(p_scales, i)[:, None]
            else:
                b_acc = tl.dot(b_w, b_x, b_acc)
        p_codes += TILE * CODE_BYTES
        p_more += TILE * MORE_BYTES
        p_scales += GROUPS * TILE // 2
        p_x += CHUNK
    return b_acc


@triton.jit(do_not_specialize=["T", "chunks", "per_split"])
def few_rows_kernel(
    x, codes, more, scales, factors, y, sums, tickets, T, N, K, stride_x, stride_y, chunks, per_split,
    UNPACK: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr, SCALED: tl.constexpr, FACTORS: tl.constexpr, ASM: tl.constexpr, BT: tl.constexpr,
    SPLITS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr, TURN: tl.constexpr, CACHE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile's outputs of BT rows over ``per_split`` chunks. x: [T, K] and y: [T, N], rows ``stride_x``
    and ``stride_y`` apart. CACHE: how x is read.

    The SPLITS programs of one tile leave their sums in ``sums`` [T, tiles, SPLITS, TILE] fp32; the last to come, as
    ``tickets`` [blocks of rows, tiles] tells, adds them up from the first to the last, whatever order they came in.
    """
    i_n, i_s, i_t = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_r = tl.arange(0, TILE)
    o_t, o_n = i_t * BT + tl.arange(0, BT), i_n * TILE + o_r
    m_t, m_n = o_t < T, o_n < N
    first = i_s * per_split
    last = tl.minimum(first + per_split, chunks)
    at = i_n.to(tl.int64) * chunks + first
    begin_in_turn(TURN, PDL)
    b_acc = summed(
        x, codes, more, scales, at, first, last, o_t, m_t, K, stride_x,
        UNPACK, COLUMNS, GROUP, CODE_BYTES, MORE_BYTES, SCALED, ASM, BT, WHOLE, STAGES, CACHE,
    )  # fmt: skip
    m = m_n[:, None] & m_t[None, :]
    p_y = y + o_t[None, :].to(tl.int64) * stride_y + o_n[:, None]
    if SPLITS == 1:
        if FACTORS:
            b_acc *= tl.load(factors + o_n)[:, None]
        tl.store(p_y, b_acc.to(y.dtype.element_ty), mask=m)
    else:
        tiles = tl.num_programs(0)
        p_sums = sums + (o_t[None, :].to(tl.int64) * tiles + i_n) * (SPLITS * TILE) + o_r[:, None]
        tl.store(p_sums + i_s * TILE, b_acc, mask=m_t[None, :])
        if comes_last(tickets + i_t * tiles + i_n, SPLITS):
            b_acc = added_up(p_sums, TILE, SPLITS, m_t[None, :])
            if FACTORS:
                b_acc *= tl.load(factors + o_n)[:, None]
            tl.store(p_y, b_acc.to(y.dtype.element_ty), mask=m)
    end_in_turn(TURN, PDL)


@triton.jit(do_not_specialize=["first_tile", "rows", "chunks"])
def decode_kernel(
    codes,
    more,
    scales,
    factors,
    out,
    first_tile,
    rows,
    K,
    chunks,
    UNPACK: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr,
    SCALED: tl.constexpr,
    FACTORS: tl.constexpr,
    ASM: tl.constexpr,
):
    """``rows`` rows from ``first_tile`` on, as out [rows, K]; a program makes a chunk of a tile."""
    GROUPS: tl.constexpr = CHUNK // GROUP
    NUM: tl.constexpr = out.dtype.element_ty
    i_n, i_c = tl.program_id(0), tl.program_id(1)
    at = (first_tile + i_n).to(tl.int64) * chunks + i_c
    o_r = tl.arange(0, TILE)
    o_n, o_k = i_n * TILE + o_r, i_c * CHUNK + COLUMNS(GROUP)
    p_codes, p_more = codes + at * (TILE * CODE_BYTES), more + at * (TILE * MORE_BYTES)
    p_out = out + o_n[:, None].to(tl.int64) * K + o_k[None, :]
    for i in tl.static_range(GROUPS):
        b_w = UNPACK(p_codes, p_more, i, o_r, NUM, ASM).to(tl.float32)
        if SCALED:
            b_w *= tile_scales(scales, at * GROUPS + i)[:, None]
        if FACTORS:
            b_w *= tl.load(factors + first_tile * TILE + o_n)[:, None]
        tl.store(p_out + i * GROUP, b_w.to(NUM), mask=(o_n < rows)[:, None] & (o_k + i * GROUP < K)[None, :])


@triton.jit(do_not_specialize=["chunks"])
def rows_kernel(
    ids,
    codes,
    more,
    scales,
    factors,
    out,
    K,
    chunks,
    UNPACK: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    MORE_BYTES: tl.constexpr,
    SCALED: tl.constexpr,
    FACTORS: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Row ``ids[t]`` as out[t]. ids: [T] int64; out: [T, K]; a program makes a chunk of a row."""
    begin(PDL)
    GROUPS: tl.constexpr = CHUNK // GROUP
    NUM: tl.constexpr = out.dtype.element_ty
    i_t, i_c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(ids + i_t)
    r = (row % TILE).to(tl.int32)
    at = row // TILE * chunks + i_c
    o_k = i_c * CHUNK + COLUMNS(GROUP)[None, :]
    p_codes, p_more = codes + at * (TILE * CODE_BYTES), more + at * (TILE * MORE_BYTES)
    for i in tl.static_range(GROUPS):
        b_w = UNPACK(p_codes, p_more, i, r + tl.arange(0, 1), NUM, ASM).to(tl.float32)
        if SCALED:
            b_s = tl.load(scales + (at * GROUPS + i) * (TILE // 2) + r % (TILE // 2))
            b_w *= (b_s >> 16 * (r // (TILE // 2))).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        if FACTORS:
            b_w *= tl.load(factors + row)
        tl.store(out + i_t * K + i * GROUP + o_k, b_w.to(NUM), mask=o_k + i * GROUP < K)
