"""Gated DeltaNet for the few tokens of a decode or verify round on a GPU, in Triton.

Legend: see ``rows``. A program keeps its piece of a state in registers and walks its row's tokens one by one: the
recurrence itself, in fp32. What a row keeps of a provisional step is found by walking the kept tokens again, so the
state that is folded is the state that was seen.
"""

import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x, part, weight, y, firsts, widths, slots, C, stride_x,
    TAPS: tl.constexpr, BC: tl.constexpr, OUTPUT: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """One row, BC channels. x: [T, C]; part: [slots, TAPS - 1, C]; weight: [TAPS, C] fp32; y: [T, C]. Row b is
    widths[b] tokens from firsts[b] on; ADVANCE moves its history over them."""
    i_b = tl.program_id(1)
    o_c = tl.program_id(0) * BC + tl.arange(0, BC)
    m_c = o_c < C
    first = tl.load(firsts + i_b)
    width = tl.load(widths + i_b).to(tl.int32)
    history = part + tl.load(slots + i_b) * (TAPS - 1) * C
    if OUTPUT:
        for t in range(width):
            b_y = tl.zeros([BC], tl.float32)
            for j in tl.static_range(TAPS):
                at = t + j - (TAPS - 1)
                m_past = m_c & (tl.zeros([BC], tl.int32) + at < 0)
                b_old = tl.load(history + (t + j) * C + o_c, mask=m_past, other=0.0).to(tl.float32)
                b_new = tl.load(x + (first + at) * stride_x + o_c, mask=m_c & ~m_past, other=0.0).to(tl.float32)
                b_y += tl.load(weight + j * C + o_c, mask=m_c, other=0.0) * (b_old + b_new)
            b_y = b_y / (1.0 + tl.exp(-b_y))
            tl.store(y + (first + t) * C + o_c, b_y.to(y.dtype.element_ty), mask=m_c)
    if ADVANCE:
        # oldest first: a row is read before a later one is written over it
        for j in tl.static_range(TAPS - 1):
            at = width + j - (TAPS - 1)
            m_past = m_c & (tl.zeros([BC], tl.int32) + at < 0)
            b_old = tl.load(history + (width + j) * C + o_c, mask=m_past, other=0.0).to(tl.float32)
            b_new = tl.load(x + (first + at) * stride_x + o_c, mask=m_c & ~m_past, other=0.0).to(tl.float32)
            if width > 0:
                tl.store(history + j * C + o_c, (b_old + b_new).to(part.dtype.element_ty), mask=m_c)


@triton.jit
def gates_kernel(a, b, a_log, dt_bias, g, beta, TOTAL, stride_a, stride_b, H: tl.constexpr, BLOCK: tl.constexpr):
    """g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b). a, b: [T, H]; a_log, dt_bias: [H] fp32; g, beta: [T, H]
    fp32, TOTAL = T * H elements."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < TOTAL
    o_t, o_h = (o // H).to(tl.int64), o % H
    b_x = tl.load(a + o_t * stride_a + o_h, mask=m, other=0.0).to(tl.float32) + tl.load(
        dt_bias + o_h, mask=m, other=0.0
    )
    # log(1 + e^x) without the loss of digits where e^x is small; past 20 it is x
    b_e = tl.exp(tl.minimum(b_x, 20.0))
    b_one = 1.0 + b_e
    b_lost = tl.where(b_one == 1.0, 1.0, b_one - 1.0)
    b_soft = tl.where(b_one == 1.0, b_e, tl.log(b_one) * (b_e / b_lost))
    b_soft = tl.where(b_x > 20.0, b_x, b_soft)
    tl.store(g + o, -tl.exp(tl.load(a_log + o_h, mask=m, other=0.0)) * b_soft, mask=m)
    b_b = tl.load(b + o_t * stride_b + o_h, mask=m, other=0.0).to(tl.float32)
    tl.store(beta + o, 1.0 / (1.0 + tl.exp(-b_b)), mask=m)


@triton.jit
def rule_kernel(
    q, k, v, g, beta, part, o, firsts, widths, slots, stride_q, stride_k, stride_v,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    OUTPUT: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """One row, one value head, BV rows of its state. q, k: [T, G, K]; v: [T, H, V]; g, beta: [T, H] fp32; part:
    [slots, H, V, K]; o: [T, H, V] fp32 (OUTPUT). ADVANCE stores the state after the
    row's widths[b] tokens."""
    i_b = tl.program_id(1)
    i_h = tl.program_id(0) // tl.cdiv(V, BV)
    i_v = tl.program_id(0) % tl.cdiv(V, BV)
    i_g = i_h // (H // G)
    o_k = tl.arange(0, K)
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < V
    first = tl.load(firsts + i_b)
    width = tl.load(widths + i_b).to(tl.int32)
    own = part + ((tl.load(slots + i_b) * H + i_h) * V + o_v[:, None]) * K + o_k[None, :]
    b_S = tl.load(own, mask=m_v[:, None], other=0.0).to(tl.float32)
    for t in range(width):
        at = first + t
        b_k = tl.load(k + at * stride_k + i_g * K + o_k).to(tl.float32)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 0) + 1e-6)
        b_v = tl.load(v + at * stride_v + i_h * V + o_v, mask=m_v, other=0.0).to(tl.float32)
        b_S = b_S * tl.exp(tl.load(g + at * H + i_h))
        b_u = tl.load(beta + at * H + i_h) * (b_v - tl.sum(b_S * b_k[None, :], 1))
        b_S = b_S + b_u[:, None] * b_k[None, :]
        if OUTPUT:
            b_q = tl.load(q + at * stride_q + i_g * K + o_k).to(tl.float32)
            b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, 0) + 1e-6) * K**-0.5)
            tl.store(o + (at * H + i_h) * V + o_v, tl.sum(b_S * b_q[None, :], 1), mask=m_v)
    if ADVANCE:
        if part.dtype.element_ty == tl.float16:
            b_S = tl.minimum(tl.maximum(b_S, -65504.0), 65504.0)
        # a row without tokens keeps its bits
        m_some = m_v & (tl.zeros([BV], tl.int32) + width > 0)
        tl.store(own, b_S.to(part.dtype.element_ty), mask=m_some[:, None])
