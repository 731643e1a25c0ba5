"""The mixture on a GPU, in Triton, without a word to the host.

Legend: T tokens, E experts, C of them a token, P = T * C pairs of a token and one of its experts, N width, F inner
width. A token's sum runs in the order of expert ids, whatever else is in the step.
"""

import triton
import triton.language as tl


@triton.jit
def route_kernel(logits, shares, ids, stride, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr):
    """One token: softmax over its E logits, then the C largest, of equal ones the lower id first. shares, ids: [T,
    C]."""
    i_t = tl.program_id(0).to(tl.int64)
    o_e = tl.arange(0, BE)
    m_e = o_e < E
    b_x = tl.load(logits + i_t * stride + o_e, mask=m_e, other=float("-inf")).to(tl.float32)
    b_p = tl.exp(b_x - tl.max(b_x, 0))
    b_p = tl.where(m_e, b_p / tl.sum(b_p, 0), -1.0)
    whole = 0.0
    b_left = b_p
    for _ in range(C):
        best = tl.max(b_left, 0)
        whole += best
        first = tl.min(tl.where(b_left == best, o_e, E - 1), 0)
        b_left = tl.where(o_e == first, -1.0, b_left)
    b_left = b_p
    for i in range(C):
        best = tl.max(b_left, 0)
        # logits that are not numbers lead to the last expert, never past it
        first = tl.min(tl.where(b_left == best, o_e, E - 1), 0)
        b_left = tl.where(o_e == first, -1.0, b_left)
        tl.store(shares + i_t * C + i, best / whole)
        tl.store(ids + i_t * C + i, first.to(tl.int64))


@triton.jit
def _next(b_ids, o_c, CP: tl.constexpr):
    """The place of the lowest id left, and what is left without it."""
    at = tl.min(tl.where(b_ids == tl.min(b_ids, 0), o_c, CP), 0)
    return at, tl.where(o_c == at, 1 << 40, b_ids)


@triton.jit
def pair_gate_up_kernel(
    x, w, ids, h, stride_x, N, C: tl.constexpr, F: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr
):
    """One pair, BI inner elements: h = SiLU(gate) * up, each rounded. x: [T, N]; w: [E, 2F, N]; h: [P, F]."""
    i_p = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * BI + tl.arange(0, BI)
    m_i = o_i < F
    own = w + (tl.load(ids + i_p) * 2 * F + o_i[:, None]) * N
    b_g = tl.zeros([BI, BN], tl.float32)
    b_u = tl.zeros([BI, BN], tl.float32)
    for n in range(0, N, BN):
        o_n = n + tl.arange(0, BN)
        m_n = o_n < N
        m_w = m_i[:, None] & m_n[None, :]
        b_x = tl.load(x + (i_p // C) * stride_x + o_n, mask=m_n, other=0.0).to(tl.float32)[None, :]
        b_g += tl.load(own + o_n[None, :], mask=m_w, other=0.0).to(tl.float32) * b_x
        b_u += tl.load(own + F * N + o_n[None, :], mask=m_w, other=0.0).to(tl.float32) * b_x
    tl.store(h + i_p * F + o_i, _gated(tl.sum(b_g, 1), tl.sum(b_u, 1), h), mask=m_i)


@triton.jit
def _gated(b_g, b_u, like):
    """SwiGLU of two products in ``like``'s type."""
    b_g = b_g.to(like.dtype.element_ty).to(tl.float32)
    b_u = b_u.to(like.dtype.element_ty).to(tl.float32)
    return (b_g / (1.0 + tl.exp(-b_g)) * b_u).to(like.dtype.element_ty)


@triton.jit
def token_down_kernel(
    h, w, ids, shares, y, N, C: tl.constexpr, CP: tl.constexpr, F: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr
):
    """One token, BN outputs: the shares of what its experts say, each product rounded to h's type. h: [P, F]; w: [E, N,
    F]; y: [T, N] fp32."""
    i_t = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    m_n = o_n < N
    o_c = tl.arange(0, CP)
    b_ids = tl.load(ids + i_t * C + o_c, mask=o_c < C, other=1 << 40)
    b_sum = tl.zeros([BN], tl.float32)
    for _ in range(C):
        at, b_ids = _next(b_ids, o_c, CP)
        own = w + (tl.load(ids + i_t * C + at) * N + o_n[:, None]) * F
        b_acc = tl.zeros([BN, BI], tl.float32)
        for i in range(0, F, BI):
            o_i = i + tl.arange(0, BI)
            m_i = o_i < F
            b_h = tl.load(h + (i_t * C + at) * F + o_i, mask=m_i, other=0.0).to(tl.float32)
            b_w = tl.load(own + o_i[None, :], mask=m_n[:, None] & m_i[None, :], other=0.0)
            b_acc += b_w.to(tl.float32) * b_h[None, :]
        b_said = tl.sum(b_acc, 1).to(h.dtype.element_ty).to(tl.float32)
        b_sum += tl.load(shares + i_t * C + at) * b_said
    tl.store(y + i_t * N + o_n, b_sum, mask=m_n)


@triton.jit
def group_gate_up_kernel(
    x, w, order, experts, firsts, ends, h, stride_x, N, E, C: tl.constexpr, F: tl.constexpr,
    BM: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BM pairs of one expert, BI inner elements. ``order``: [P] pairs sorted by expert; block m is the sorted places
    firsts[m] to ends[m] - 1 (at most BM of them) of expert experts[m], E where there is no block. h: [P, F] in sorted
    order."""
    i_m = tl.program_id(0)
    e = tl.load(experts + i_m)
    if e < E:
        o_m = tl.load(firsts + i_m) + tl.arange(0, BM)
        m_m = o_m < tl.load(ends + i_m)
        o_t = tl.load(order + o_m, mask=m_m, other=0) // C
        o_i = tl.program_id(1) * BI + tl.arange(0, BI)
        m_i = o_i < F
        own = w + (e * 2 * F + o_i[None, :]) * N
        b_g = tl.zeros([BM, BI], tl.float32)
        b_u = tl.zeros([BM, BI], tl.float32)
        for n in range(0, N, BN):
            o_n = n + tl.arange(0, BN)
            m_n = o_n < N
            m_w = m_n[:, None] & m_i[None, :]
            b_x = tl.load(x + o_t[:, None] * stride_x + o_n[None, :], mask=m_m[:, None] & m_n[None, :], other=0.0)
            b_wg = tl.load(own + o_n[:, None], mask=m_w, other=0.0)
            b_wu = tl.load(own + F * N + o_n[:, None], mask=m_w, other=0.0)
            b_g = tl.dot(b_x, b_wg, b_g, input_precision=PRECISION)
            b_u = tl.dot(b_x, b_wu, b_u, input_precision=PRECISION)
        tl.store(h + o_m[:, None] * F + o_i[None, :], _gated(b_g, b_u, h), mask=m_m[:, None] & m_i[None, :])


@triton.jit
def group_down_kernel(
    h, w, order, experts, firsts, ends, said, N, E, F: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BM pairs of one expert, BN outputs; blocks as ``group_gate_up_kernel`` has them. h: [P, F] in sorted order; w:
    [E, N, F]; said: [P, N] in the order of pairs."""
    i_m = tl.program_id(0)
    e = tl.load(experts + i_m)
    if e < E:
        o_m = tl.load(firsts + i_m) + tl.arange(0, BM)
        m_m = o_m < tl.load(ends + i_m)
        o_p = tl.load(order + o_m, mask=m_m, other=0)
        o_n = tl.program_id(1) * BN + tl.arange(0, BN)
        m_n = o_n < N
        own = w + (e * N + o_n[None, :]) * F
        b_acc = tl.zeros([BM, BN], tl.float32)
        for i in range(0, F, BI):
            o_i = i + tl.arange(0, BI)
            m_i = o_i < F
            b_h = tl.load(h + o_m[:, None] * F + o_i[None, :], mask=m_m[:, None] & m_i[None, :], other=0.0)
            b_w = tl.load(own + o_i[:, None], mask=m_i[:, None] & m_n[None, :], other=0.0)
            b_acc = tl.dot(b_h, b_w, b_acc, input_precision=PRECISION)
        o_said = o_p[:, None] * N + o_n[None, :]
        tl.store(said + o_said, b_acc.to(said.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


@triton.jit
def share_kernel(said, ids, shares, y, N, C: tl.constexpr, CP: tl.constexpr, BN: tl.constexpr):
    """One token, BN outputs: the shares of what its experts said. said: [P, N]; y: [T, N] fp32."""
    i_t = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < N
    o_c = tl.arange(0, CP)
    b_ids = tl.load(ids + i_t * C + o_c, mask=o_c < C, other=1 << 40)
    b_sum = tl.zeros([BN], tl.float32)
    for _ in range(C):
        at, b_ids = _next(b_ids, o_c, CP)
        b_said = tl.load(said + (i_t * C + at) * N + o_n, mask=m_n, other=0.0).to(tl.float32)
        b_sum += tl.load(shares + i_t * C + at) * b_said
    tl.store(y + i_t * N + o_n, b_sum, mask=m_n)
