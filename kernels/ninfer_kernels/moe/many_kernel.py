"""The experts of many tokens, in Triton: pairs of a token and an expert sorted by expert, in tiles of one expert each.

An expert's last tile is seldom full: what fits in a smaller one is computed in that.

Legend: T tokens, N width, E experts, C of them a token, S = C + 1, P = T * C places of pairs sorted by expert, F inner
width.
"""

import triton
import triton.language as tl

from .few_kernel import gated


@triton.jit
def _inner(
    x, w, tokens, h, e, first, end, i_i, stride_x, N: tl.constexpr, F: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, DESC: tl.constexpr,
):  # fmt: skip
    """BM places from ``first`` on, BI inner elements: h = SiLU(gate) * up. Places after the end read token 0."""
    o_m = first + tl.arange(0, BM)
    m_m = o_m < end
    o_t = tl.load(tokens + o_m, mask=m_m, other=0).to(tl.int64)
    o_i = i_i * BI + tl.arange(0, BI)
    m_i = o_i < F
    at_x = x + o_t[:, None] * stride_x
    b_g = tl.zeros([BM, BI], tl.float32)
    b_u = tl.zeros([BM, BI], tl.float32)
    row = e * 2 * F + i_i * BI
    if not DESC:
        at_g = w + (e.to(tl.int64) * 2 * F + o_i)[None, :] * N
        at_u = at_g + F * N
    for n in range(0, N, BN):
        o_n = n + tl.arange(0, BN)
        m_n = o_n < N
        if N % BN == 0:
            b_x = tl.load(at_x + o_n[None, :])
        else:
            b_x = tl.load(at_x + o_n[None, :], mask=m_n[None, :], other=0.0)
        if DESC:
            b_wg, b_wu = w.load([row, n]).T, w.load([row + F, n]).T
        else:
            m_w = m_n[:, None] & m_i[None, :]
            b_wg = tl.load(at_g + o_n[:, None], mask=m_w, other=0.0)
            b_wu = tl.load(at_u + o_n[:, None], mask=m_w, other=0.0)
        b_g = tl.dot(b_x, b_wg, b_g, input_precision=PRECISION)
        b_u = tl.dot(b_x, b_wu, b_u, input_precision=PRECISION)
    at_h = h + o_m.to(tl.int64)[:, None] * F + o_i[None, :]
    tl.store(at_h, gated(b_g, b_u, h), mask=m_m[:, None] & m_i[None, :])


@triton.jit
def many_gate_up_kernel(
    x, w, tokens, owners, firsts, ends, h, stride_x, N: tl.constexpr, F: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, TAIL: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    DESC: tl.constexpr,
):  # fmt: skip
    """A tile of at most BM places of one expert, of TAIL if that holds what is left. x: [T, N]; w: [E * 2F, N] or, with
    DESC, its descriptor; h: [P, F]."""
    BLOCKS: tl.constexpr = (F + BI - 1) // BI
    i_m, i_i = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    e = tl.load(owners + i_m)
    if e < E:
        first, end = tl.load(firsts + i_m), tl.load(ends + e)
        if TAIL == BM or end - first > TAIL:
            _inner(x, w, tokens, h, e, first, end, i_i, stride_x, N, F, BM, BI, BN, PRECISION, DESC)
        else:
            _inner(x, w, tokens, h, e, first, end, i_i, stride_x, N, F, TAIL, BI, BN, PRECISION, DESC)


@triton.jit
def _outer(
    h, w, said, e, first, end, i_n, N: tl.constexpr, F: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, PRECISION: tl.constexpr, DESC: tl.constexpr,
):  # fmt: skip
    """BM places from ``first`` on, BN outputs."""
    o_m = first + tl.arange(0, BM)
    m_m = o_m < end
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < N
    row = e * N + i_n * BN
    if not DESC:
        at_h = h + o_m.to(tl.int64)[:, None] * F
        at_w = w + (e.to(tl.int64) * N + o_n)[None, :] * F
    b_acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, F, BI):
        o_i = i + tl.arange(0, BI)
        m_i = o_i < F
        if DESC:
            # rows after the end are another expert's: nobody reads what comes of them
            b_h, b_w = h.load([first, i]), w.load([row, i]).T
        else:
            b_h = tl.load(at_h + o_i[None, :], mask=m_m[:, None] & m_i[None, :], other=0.0)
            b_w = tl.load(at_w + o_i[:, None], mask=m_i[:, None] & m_n[None, :], other=0.0)
        b_acc = tl.dot(b_h, b_w, b_acc, input_precision=PRECISION)
    at = said + o_m.to(tl.int64)[:, None] * N + o_n[None, :]
    tl.store(at, b_acc.to(said.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


@triton.jit
def many_down_kernel(
    h, h_tail, w, owners, firsts, ends, said, N: tl.constexpr, F: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, TAIL: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, PRECISION: tl.constexpr,
    DESC: tl.constexpr,
):  # fmt: skip
    """The same tiles, BN outputs. h: [P, F], h_tail the same, descriptors of BM and TAIL rows with DESC; w: [E * N, F];
    said: [P, N]."""
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    i_m, i_n = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    e = tl.load(owners + i_m)
    if e < E:
        first, end = tl.load(firsts + i_m), tl.load(ends + e)
        if TAIL == BM or end - first > TAIL:
            _outer(h, w, said, e, first, end, i_n, N, F, BM, BN, BI, PRECISION, DESC)
        else:
            _outer(h_tail, w, said, e, first, end, i_n, N, F, TAIL, BN, BI, PRECISION, DESC)


@triton.jit
def many_add_kernel(
    said, said_shared, places, shares, y, N, C: tl.constexpr, CP: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """One token, BN outputs: the shares of what its experts say. said: [P, N]; said_shared: [T, N]; places: [T, C];
    shares: [T, S]; y: [T, N]."""
    i_t = tl.program_id(0).to(tl.int64)
    o_n, o_c = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, CP)
    m_n, m_c = o_n < N, o_c < C
    b_place = tl.load(places + i_t * C + o_c, mask=m_c, other=0).to(tl.int64)
    b_share = tl.load(shares + i_t * (C + 1) + o_c, mask=m_c, other=0.0)
    at = said + b_place[:, None] * N + o_n[None, :]
    b_said = tl.load(at, mask=m_c[:, None] & m_n[None, :], other=0.0).to(tl.float32)
    b_shared = tl.load(said_shared + i_t * N + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_y = tl.sum(b_share[:, None] * b_said, 0) + tl.load(shares + i_t * (C + 1) + C) * b_shared
    tl.store(y + i_t * N + o_n, b_y.to(y.dtype.element_ty), mask=m_n)
