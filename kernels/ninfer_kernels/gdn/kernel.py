"""Gated DeltaNet for the few tokens of a decode or verify round on a GPU, in Triton.

Legend: see ``rows``. A program of ``step_kernel`` does all a value head does in a round: the convolution of its
channels, the gates, the recurrence in fp32 with the state in registers, the norm and its gate. It walks its row's
tokens one by one, so a token's bits do not depend on how many follow. Where there are several, what needs no state is
made for all of them at once by ``tokens_kernel``, with the same arithmetic. What a row keeps of them is found by
walking the kept tokens again, in ``fold_kernel``, with the same transition: the state that is folded is the state that
was seen.

A key dimension of n * 32 lies as [n, 32]: few threads hold a row of a state, and its sums are mostly a thread's own.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin, begin_alone


@triton.jit
def log_decay(a, a_log, dt_bias):
    """``-exp(a_log) softplus(a + dt_bias)``, fp32."""
    b_x = a.to(tl.float32) + dt_bias
    # log(1 + e^x) without the loss of digits where e^x is small; past 20 it is x
    b_e = tl.exp(tl.minimum(b_x, 20.0))
    b_one = 1.0 + b_e
    b_lost = tl.where(b_one == 1.0, 1.0, b_one - 1.0)
    b_soft = tl.where(b_one == 1.0, b_e, tl.log(b_one) * (b_e / b_lost))
    return -tl.exp(a_log) * tl.where(b_x > 20.0, b_x, b_soft)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def convolved(x, history, weight, t, o_c, m_c, C, stride_x, TAPS: tl.constexpr):
    """The SiLU of the convolution of channels ``o_c`` at token ``t`` of a row, rounded to x's type, as fp32.

    x: the row's first token, tokens ``stride_x`` apart; history: [TAPS - 1, C]; weight: [TAPS, C] fp32."""
    b_y = tl.zeros(o_c.shape, tl.float32)
    for j in tl.static_range(TAPS):
        at = t + j - (TAPS - 1)
        m_past = m_c & (tl.zeros(o_c.shape, tl.int32) + at < 0)
        b_old = tl.load(history + (t + j) * C + o_c, mask=m_past, other=0.0).to(tl.float32)
        b_new = tl.load(x + at * stride_x + o_c, mask=m_c & ~m_past, other=0.0).to(tl.float32)
        b_y += tl.load(weight + j * C + o_c, mask=m_c, other=0.0) * (b_old + b_new)
    return (b_y * sigmoid(b_y)).to(x.dtype.element_ty).to(tl.float32)


@triton.jit
def moved_history(x, history, count, o_c, m_c, C, stride_x, TAPS: tl.constexpr):
    """Move channels ``o_c`` of a history over the first ``count`` > 0 tokens of a row."""
    # oldest first: a row is read before a later one is written over it
    for j in tl.static_range(TAPS - 1):
        at = count + j - (TAPS - 1)
        m_past = m_c & (tl.zeros(o_c.shape, tl.int32) + at < 0)
        b_old = tl.load(history + (count + j) * C + o_c, mask=m_past, other=0.0).to(tl.float32)
        b_new = tl.load(x + at * stride_x + o_c, mask=m_c & ~m_past, other=0.0).to(tl.float32)
        tl.debug_barrier()
        tl.store(history + j * C + o_c, (b_old + b_new).to(history.dtype.element_ty), mask=m_c)


@triton.jit
def contracted(b_S, b_x):
    """``S x``: [V, N, 32] by [N, 32] -> [V]."""
    return tl.sum(tl.sum(b_S * b_x[None, :, :], 1), 1)


@triton.jit
def written(b_S, b_k, b_v, g, beta):
    """``S = e^g S; u = beta (v - S k); S + u k^T``, k of unit length."""
    b_S = b_S * tl.exp(g)
    b_u = beta * (b_v - contracted(b_S, b_k))
    # named fma: a state must not depend on which product a compiler fuses
    return tl.fma(tl.broadcast_to(b_u[:, None, None], b_S.shape), tl.broadcast_to(b_k[None, :, :], b_S.shape), b_S)


@triton.jit
def stored(b_S, TYPE: tl.constexpr):
    """An fp32 state as it is kept; fp16 holds what lies beyond its range as its largest number."""
    if tl.float16 == TYPE:
        b_S = tl.minimum(tl.maximum(b_S, -65504.0), 65504.0)
    return b_S.to(TYPE)


@triton.jit
def channels(i_h, G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr):
    """The channels of q, k, v of a head and of nothing, [4, BD]: which of the four, where in a token, whether they are,
    and whether this head keeps them: what a group of heads shares is kept by its first."""
    # four, not three: enough elements for every thread to have its own
    o_i, o_d = tl.arange(0, 4)[:, None], tl.arange(0, BD)[None, :]
    i_g = i_h // (H // G)
    o_c = tl.where(o_i == 2, 2 * G * K + i_h * V, i_g * K + tl.where(o_i == 1, G * K, 0)) + o_d
    m_c = o_d < tl.where(o_i == 2, V, tl.where(o_i == 3, 0, K))
    m_kept = m_c & ((o_i == 2) | (tl.zeros([4, 1], tl.int32) + i_h % (H // G) == 0))
    return o_i, o_c, m_c, m_kept


@triton.jit
def fed(
    mixed, ab, history, weight, rate, bias, rec_x, rec_k, rec_v, rec_gates, t, at, i_h, o_i, o_c, m_c, m_kept,
    stride_x, stride_ab,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """What token ``t`` of a row, ``at`` of the step, feeds a head with: q of length K^-0.5, k of length one and v, [4,
    BD]; the log decay and the strength. The records get what a fold needs of it."""
    C: tl.constexpr = 2 * G * K + H * V
    b_y = convolved(mixed, history, weight, t, o_c, m_c, C, stride_x, TAPS)
    g = log_decay(tl.load(ab + t * stride_ab + i_h), rate, bias)
    beta = sigmoid(tl.load(ab + t * stride_ab + H + i_h).to(tl.float32))
    b_scale = tl.rsqrt(tl.sum(b_y * b_y, 1)[:, None] + 1e-6)
    b_y = b_y * tl.where(o_i == 0, b_scale * K**-0.5, tl.where(o_i == 1, b_scale, 1.0))
    tl.store(rec_x + at * C + o_c, tl.load(mixed + t * stride_x + o_c, mask=m_kept, other=0.0), mask=m_kept)
    tl.store(rec_k + at * (G * K) + o_c - G * K, b_y, mask=m_kept & (o_i == 1))
    tl.store(rec_v + at * (H * V) + o_c - 2 * G * K, b_y.to(rec_v.dtype.element_ty), mask=m_kept & (o_i == 2))
    tl.store(rec_gates + at * (2 * H) + i_h, g)
    tl.store(rec_gates + at * (2 * H) + H + i_h, beta)
    return b_y, g, beta


@triton.jit
def tokens_kernel(
    mixed, ab, weight, a_log, dt_bias, history, q, rec_x, rec_k, rec_v, rec_gates, firsts, widths, slots,
    stride_x, stride_ab,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr, TAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One token, one value head: what ``step_kernel`` is fed with. q: [T, G * K] fp32; the rest as there."""
    i_h, t, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_i, o_c, _m_c, m_kept = channels(i_h, G, H, K, V, BD)
    rate, bias = tl.load(a_log + i_h), tl.load(dt_bias + i_h)
    begin(PDL)
    if t < tl.load(widths + i_b):
        first = tl.load(firsts + i_b)
        history += tl.load(slots + i_b) * (TAPS - 1) * (2 * G * K + H * V)
        b_y, _g, _beta = fed(
            mixed + first * stride_x, ab + first * stride_ab, history, weight, rate, bias,
            rec_x, rec_k, rec_v, rec_gates, t, first + t, i_h, o_i, o_c, m_kept, m_kept, stride_x, stride_ab,
            G, H, K, V, TAPS,
        )  # fmt: skip
        tl.store(q + (first + t) * (G * K) + o_c, b_y, mask=m_kept & (o_i == 0))


@triton.jit
def step_kernel(
    mixed, ab, weight, a_log, dt_bias, norm, history, state, y, q, rec_x, rec_k, rec_v, rec_gates,
    firsts, widths, slots, stride_x, stride_ab, eps,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr, TAPS: tl.constexpr,
    SEVERAL: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row, one value head. mixed: [T, C + H * V], the channels of q, k and v, then z; ab: [T, 2 * H]; weight:
    [TAPS, C], a_log, dt_bias: [H], norm: [V] fp32; history: [slots, TAPS - 1, C]; state: [slots, H, V, K]; y: [T, H *
    V]. rec_x: [T, C], rec_k: [T, G * K] fp32, rec_v: [T, H * V], rec_gates: [T, 2 * H] fp32 keep what a fold needs.
    With SEVERAL tokens they and q come from ``tokens_kernel``."""
    WAYS: tl.constexpr = min(BD, 32)
    C: tl.constexpr = 2 * G * K + H * V
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    i_g = i_h // (H // G)
    o_d, o_k = tl.arange(0, BD), tl.arange(0, BD // WAYS)[:, None] * WAYS + tl.arange(0, WAYS)[None, :]
    m_v, m_k = o_d < V, o_k < K
    first, width, slot = tl.load(firsts + i_b), tl.load(widths + i_b).to(tl.int32), tl.load(slots + i_b)
    own = state + ((slot * H + i_h) * V + o_d[:, None, None]) * K + o_k[None, :, :]
    # who writes states lets nobody in before its end
    b_S = tl.load(own, mask=m_v[:, None, None] & m_k[None, :, :], other=0.0).to(tl.float32)
    b_norm = tl.load(norm + o_d, mask=m_v, other=0.0)
    rate, bias = tl.load(a_log + i_h), tl.load(dt_bias + i_h)
    o_i, o_c, m_c, m_kept = channels(i_h, G, H, K, V, BD)
    begin(PDL)
    history += slot * (TAPS - 1) * C
    mixed += first * stride_x
    ab += first * stride_ab
    for t in tl.range(0, width, num_stages=STAGES):
        at = first + t
        b_z = tl.load(mixed + t * stride_x + C + i_h * V + o_d, mask=m_v, other=0.0).to(tl.float32)
        if SEVERAL:
            b_k = tl.load(rec_k + at * (G * K) + i_g * K + o_k, mask=m_k, other=0.0)
            b_q = tl.load(q + at * (G * K) + i_g * K + o_k, mask=m_k, other=0.0)
            b_v = tl.load(rec_v + at * (H * V) + i_h * V + o_d, mask=m_v, other=0.0).to(tl.float32)
            gates = rec_gates + at * (2 * H) + i_h
            g, beta = tl.load(gates), tl.load(gates + H)
        else:
            b_y, g, beta = fed(
                mixed, ab, history, weight, rate, bias, rec_x, rec_k, rec_v, rec_gates, t, at, i_h, o_i, o_c, m_c,
                m_kept, stride_x, stride_ab, G, H, K, V, TAPS,
            )  # fmt: skip
            b_qv, b_k = tl.split(tl.permute(tl.reshape(b_y, [2, 2, BD]), (2, 0, 1)))
            b_q, b_v = tl.split(b_qv)
            b_k, _ = tl.split(b_k)
            b_k, b_q = tl.reshape(b_k, [BD // WAYS, WAYS]), tl.reshape(b_q, [BD // WAYS, WAYS])
        b_S = written(b_S, b_k, b_v, g, beta)
        b_o = contracted(b_S, b_q)
        b_o = b_o * tl.rsqrt(tl.sum(b_o * b_o, 0) / V + eps) * b_norm * (b_z * sigmoid(b_z))
        tl.store(y + at * (H * V) + i_h * V + o_d, b_o.to(y.dtype.element_ty), mask=m_v)


@triton.jit
def fold_kernel(
    addresses, history_type, state_type, rec_x, rec_k, rec_v, rec_gates, firsts, kept, slots, T, stride_part,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr, TAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One layer, one row, one value head, over the first kept[b] tokens. addresses: [2, layers] of histories and
    states, rows ``stride_part`` apart, which hold what the tensors ``*_type`` hold; rec_*: as ``step_kernel`` wrote
    them, the T tokens of each layer one after the other."""
    WAYS: tl.constexpr = min(BD, 32)
    C: tl.constexpr = 2 * G * K + H * V
    i_h, i_b, i_l = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_g = i_h // (H // G)
    o_d, o_k = tl.arange(0, BD), tl.arange(0, BD // WAYS)[:, None] * WAYS + tl.arange(0, WAYS)[None, :]
    m_v, m_k = o_d < V, o_k < K
    begin_alone(PDL)
    count = tl.load(kept + i_b).to(tl.int32)
    # a row that keeps nothing keeps its bits
    if count > 0:
        slot, first = tl.load(slots + i_b), i_l.to(tl.int64) * T + tl.load(firsts + i_b)
        state = tl.load(addresses + stride_part + i_l).to(state_type.dtype)
        own = tl.multiple_of(state, 16) + ((slot * H + i_h) * V + o_d[:, None, None]) * K + o_k[None, :, :]
        m_S = m_v[:, None, None] & m_k[None, :, :]
        b_S = tl.load(own, mask=m_S, other=0.0).to(tl.float32)
        for t in range(count):
            at = first + t
            b_k = tl.load(rec_k + at * (G * K) + i_g * K + o_k, mask=m_k, other=0.0)
            b_v = tl.load(rec_v + at * (H * V) + i_h * V + o_d, mask=m_v, other=0.0).to(tl.float32)
            gates = rec_gates + at * (2 * H) + i_h
            b_S = written(b_S, b_k, b_v, tl.load(gates), tl.load(gates + H))
        tl.store(own, stored(b_S, state_type.dtype.element_ty), mask=m_S)
        history = tl.load(addresses + i_l).to(history_type.dtype)
        history = tl.multiple_of(history, 16) + slot * (TAPS - 1) * C
        x = rec_x + first * C
        moved_history(x, history, count, 2 * G * K + i_h * V + o_d, m_v, C, C, TAPS)
        # queries and keys once for the heads that share them
        if i_h % (H // G) == 0:
            moved_history(x, history, count, i_g * K + o_d, o_d < K, C, C, TAPS)
            moved_history(x, history, count, (G + i_g) * K + o_d, o_d < K, C, C, TAPS)


@triton.jit
def last_kernel(x, part, firsts, kept, slots, N, stride_x, stride_p, BN: tl.constexpr, PDL: tl.constexpr):
    """BN elements of one row: those of its last kept token. x: [T, N]; part: [slots, N]."""
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    begin_alone(PDL)
    count = tl.load(kept + i_b)
    # a row that keeps nothing keeps its bits
    if count > 0:
        at, slot = tl.load(firsts + i_b) + count - 1, tl.load(slots + i_b)
        b_x = tl.load(x + at * stride_x + o_n, mask=o_n < N, other=0.0)
        tl.store(part + slot * stride_p + o_n, b_x.to(part.dtype.element_ty), mask=o_n < N)
