"""The experts of a few tokens, in Triton: every pair of a token and an expert on its own, at the speed of memory.

Products run on the plain cores, one token at a time: a token has the same bits whatever stands beside it. Tokens with
an expert in common are neighbours, so that what one reads is in the cache for the next. Weights that wait for nothing
are asked for before the launch before has ended (``ninfer_kernels.pdl``). Until a program has waited, its
multiprocessor's own cache may hold what was there before: activations that are read earlier bypass it (``.cg``).

Legend: T tokens, N width, C experts a token, S = C + 1 slots (``choose_kernel``), F inner width, of the shared expert
F_SHARED.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer_kernels.pdl import begin


@triton.jit
def wait_then_let_in(PDL: tl.constexpr):
    """``pdl.begin`` the other way round: whoever comes next may read what was written two launches before it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def gated(b_g, b_u, like):
    """SwiGLU of two products in ``like``'s type."""
    b_g = b_g.to(like.dtype.element_ty).to(tl.float32)
    b_u = b_u.to(like.dtype.element_ty).to(tl.float32)
    return (b_g / (1.0 + tl.exp(-b_g)) * b_u).to(like.dtype.element_ty)


@triton.jit
def few_gate_up_kernel(
    x, w, w_shared, ids, h, stride_x, stride_h, T,
    N: tl.constexpr, F: tl.constexpr, F_SHARED: tl.constexpr, C: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BI inner elements of a slot. x: [T, N]; w: [E, 2F, N]; h: [T * S, stride_h]. The shared expert's programs come
    first: x was complete before the launch before let this one in, so they run while experts are being chosen.
    STAGES pieces of BN columns are in flight."""
    i_p = tl.program_id(0)
    early = T * ((F_SHARED + BI - 1) // BI)
    is_shared = i_p < early
    i_q = tl.where(is_shared, i_p, i_p - early)
    among = tl.where(is_shared, T, T * C)
    i_i, i_s = i_q // among, i_q % among
    i_t = tl.where(is_shared, i_s, i_s // C)
    i_c = tl.where(is_shared, C, i_s % C)
    if not is_shared:
        wait_then_let_in(PDL)
    e = tl.load(ids + i_t * (C + 1) + i_c, mask=i_p >= early, other=0)
    own = tl.where(is_shared, w_shared, w + e.to(tl.int64) * (2 * F * N))
    width = tl.where(is_shared, F_SHARED, F)
    o_i = i_i * BI + tl.arange(0, BI)
    m_i = o_i < width
    o_r = tl.arange(0, 2)[:, None] * width + o_i[None, :]
    b_acc = tl.zeros([2, BI, BN], tl.float32)
    for n in tl.range(0, N, BN, num_stages=STAGES):
        o_n = n + tl.arange(0, BN)[None, None, :]
        m_w = m_i[None, :, None] & (o_n < N)
        b_w = tl.load(own + o_r[:, :, None] * N + o_n, mask=m_w, other=0.0)
        # one load for both kinds of programs: a branch here would keep weights from being on their way
        b_x = tl.load(x + i_t * stride_x + o_n, mask=o_n < N, other=0.0, cache_modifier=".cg")
        b_acc += b_w.to(tl.float32) * b_x.to(tl.float32)
    b_g, b_u = tl.split(tl.trans(tl.sum(b_acc, 2)))
    tl.store(h + (i_t * (C + 1) + i_c) * stride_h + o_i, gated(b_g, b_u, h), mask=m_i)
    if is_shared:
        wait_then_let_in(PDL)


@triton.jit
def few_down_kernel(
    h, w, w_shared, ids, shares, y, stride_h, N: tl.constexpr, F: tl.constexpr, F_SHARED: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BN outputs of a token: what its slots say, each rounded, and the sum of their shares. w: [E, N, F]; h: [T * S,
    stride_h]; y: [T, N]. Ids and shares were written two launches before, and the one between waited for them."""
    i_t = tl.program_id(0)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    o_c = tl.arange(0, CP)
    o_f = tl.arange(0, BF)[None, None, :]
    m_n, m_c = o_n < N, o_c < C
    m_w = m_c[:, None, None] & m_n[None, :, None]
    first = i_t * (C + 1)
    b_e = tl.load(ids + first + o_c, mask=m_c, other=0, cache_modifier=".cg").to(tl.int64)
    at_w = w + b_e[:, None, None] * (N * F) + o_n[None, :, None] * F
    at_h = h + (first + o_c)[:, None, None] * stride_h
    at_s = w_shared + o_n[None, :, None] * F_SHARED
    b_w = tl.load(at_w + o_f, mask=m_w & (o_f < F), other=0.0)
    b_s = tl.load(at_s + o_f, mask=m_n[None, :, None] & (o_f < F_SHARED), other=0.0)
    b_share = tl.load(shares + first + o_c, mask=m_c, other=0.0, cache_modifier=".cg")
    b_share_last = tl.load(shares + first + C, cache_modifier=".cg")
    begin(PDL)
    b_acc = tl.zeros([CP, BN, BF], tl.float32)
    for f in tl.static_range(0, F, BF):
        if f > 0:
            b_w = tl.load(at_w + f + o_f, mask=m_w & (o_f < F - f), other=0.0)
        b_h = tl.load(at_h + f + o_f, mask=m_c[:, None, None] & (o_f < F - f), other=0.0)
        b_acc += b_w.to(tl.float32) * b_h.to(tl.float32)
    b_shared = tl.zeros([1, BN, BF], tl.float32)
    for f in tl.static_range(0, F_SHARED, BF):
        if f > 0:
            b_s = tl.load(at_s + f + o_f, mask=m_n[None, :, None] & (o_f < F_SHARED - f), other=0.0)
        b_h = tl.load(h + (first + C) * stride_h + f + o_f, mask=o_f < F_SHARED - f, other=0.0)
        b_shared += b_s.to(tl.float32) * b_h.to(tl.float32)
    b_said = tl.sum(b_acc, 2).to(y.dtype.element_ty).to(tl.float32)
    b_last = tl.sum(tl.sum(b_shared, 2), 0).to(y.dtype.element_ty).to(tl.float32)
    b_y = tl.sum(b_share[:, None] * b_said, 0) + b_share_last * b_last
    tl.store(y + i_t * N + o_n, b_y.to(y.dtype.element_ty), mask=m_n)
