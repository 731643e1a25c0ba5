"""Gated DeltaNet over long rows on a GPU, in Triton: chunks of 64 tokens, tensor cores for the products.

Legend: see ``rows``; N chunks of all rows, L = 64 tokens of a chunk. With G_i the log decay from a chunk's start to its
token i, and D_ij = e^(G_i - G_j) for j <= i:

    inverse = (I + strictly lower(beta_i k_i . k_j D_ij))^-1        within = (q_i . k_j D_ij)
    R = beta (V - e^G (K S^T))      U = inverse R      O = e^G (Q S^T) + within U
    S = e^G_last S + (e^(G_last - G) U)^T K

The inverse and what is within a chunk need no state: ``prepare_kernel`` makes them for all chunks at once, so the walk
over a row's chunks is four products a chunk, whose left sides stay in registers. Sums, states and the inverse are fp32,
factors of the products are the activations' type.
Source: Yang et al. 2024, "Gated Delta Networks", section 3.3.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin, begin_alone

from .kernel import log_decay, moved_history, sigmoid, stored


@triton.jit
def conv_rows_kernel(
    x, history, weight, qk, v, chunk_firsts, chunk_counts, chunk_rows, firsts, slots, stride_x,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BD: tl.constexpr, TAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One chunk, one head of q, k or v: the SiLU of the convolution, rounded; then q and k of length K^-0.5 and one.
    x: [T, C], tokens ``stride_x`` apart; history: [slots, TAPS - 1, C]; weight: [TAPS, C]; qk: [N, 2 * G, L, K]; v: [N,
    H, V, L]. Zeros follow the row's last token."""
    C: tl.constexpr = 2 * G * K + H * V
    i_d, i_n = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    count, row = tl.load(chunk_counts + i_n).to(tl.int32), tl.load(chunk_rows + i_n)
    start = tl.load(chunk_firsts + i_n)
    before = (start - tl.load(firsts + row)).to(tl.int32)  # tokens of the row before this chunk
    history += tl.load(slots + row) * (TAPS - 1) * C
    is_key = i_d < 2 * G
    base = tl.where(is_key, i_d * K, 2 * G * K + (i_d - 2 * G) * V)
    o_d, o_t = tl.arange(0, BD), tl.arange(0, 64)
    m_d, m_t = o_d < tl.where(is_key, K, V), o_t < count
    x += start * stride_x
    b_y = tl.zeros([64, BD], tl.float32)
    for j in tl.static_range(TAPS):
        o_at = o_t + (j - (TAPS - 1))
        m_now = m_d[None, :] & (m_t & (o_at + before >= 0))[:, None]
        b_x = tl.load(x + o_at[:, None] * stride_x + base + o_d[None, :], mask=m_now, other=0.0).to(tl.float32)
        if before < TAPS - 1:
            m_past = m_d[None, :] & (m_t & (o_at + before < 0))[:, None]
            o_past = (o_t + before + j)[:, None] * C + base + o_d[None, :]
            b_x += tl.load(history + o_past, mask=m_past, other=0.0).to(tl.float32)
        b_y += tl.load(weight + j * C + base + o_d, mask=m_d, other=0.0)[None, :] * b_x
    b_y = (b_y * sigmoid(b_y)).to(qk.dtype.element_ty)
    if is_key:
        b_wide = b_y.to(tl.float32)
        b_scale = tl.rsqrt(tl.sum(b_wide * b_wide, 1) + 1e-6) * tl.where(i_d < G, K**-0.5, 1.0)
        head = qk + (i_n.to(tl.int64) * (2 * G) + i_d) * (64 * K)
        b_wide = (b_wide * b_scale[:, None]).to(qk.dtype.element_ty)
        tl.store(head + o_t[:, None] * K + o_d[None, :], b_wide, mask=m_d[None, :])
    else:
        head = v + (i_n.to(tl.int64) * H + i_d - 2 * G) * (V * 64)
        tl.store(head + o_d[:, None] * 64 + o_t[None, :], tl.trans(b_y), mask=m_d[:, None])


@triton.jit
def vector_pairs(b_x):
    """[4, 16] -> its even and its odd rows, [2, 16]."""
    return tl.split(tl.permute(tl.reshape(b_x, [2, 2, 16]), (0, 2, 1)))


@triton.jit
def block_pairs(b_x):
    """[4, 16, 16] -> its even and its odd blocks, [2, 16, 16]."""
    return tl.split(tl.permute(tl.reshape(b_x, [2, 2, 16, 16]), (0, 2, 3, 1)))


@triton.jit
def inverses_16(b_upper):
    """The inverses of ``I + lower``, given the transposed strictly lower parts: [M, 16, 16], row by row."""
    o_r, o_c = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    b_X = tl.zeros(b_upper.shape, tl.float32) + tl.where(o_r == o_c, 1.0, 0.0)
    for i in range(1, 16):
        b_a = tl.sum(tl.where(o_c == i, b_upper, 0.0), 2)  # row i of the lower part
        b_row = tl.sum(b_a[:, :, None] * b_X, 1)
        b_X = tl.where(o_r == i, b_X - b_row[:, None, :], b_X)
    return b_X


@triton.jit
def scaled(b_kk, b_beta, b_G, b_H):
    """``beta_i (k_i . k_j) e^(G_i - H_j)`` of blocks whose rows i all follow their columns j: [M, I, J]."""
    return b_kk * b_beta[:, :, None] * tl.exp(b_G[:, :, None] - b_H[:, None, :])


@triton.jit
def prepare_kernel(
    qk, ab, a_log, dt_bias, inverse, within, decay, strength, chunk_firsts, chunk_counts, stride_ab,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk, one value head. qk: as ``conv_rows_kernel`` wrote it; ab: [T, 2 * H]; inverse, within: [N, H, L, L];
    decay (from the chunk's start), strength: [N, H, L] fp32. What follows the row's last token writes nothing."""
    i_h, i_n = tl.program_id(0), tl.program_id(1)
    i_g = i_h // (H // G)
    begin(PDL)
    start, count = tl.load(chunk_firsts + i_n), tl.load(chunk_counts + i_n).to(tl.int32)
    o_t, o_k = tl.arange(0, 64), tl.arange(0, K)
    m_t = o_t < count
    ab += start * stride_ab
    b_a = tl.load(ab + o_t * stride_ab + i_h, mask=m_t, other=0.0)
    b_b = tl.load(ab + o_t * stride_ab + H + i_h, mask=m_t, other=0.0).to(tl.float32)
    b_g = tl.where(m_t, log_decay(b_a, tl.load(a_log + i_h), tl.load(dt_bias + i_h)), 0.0)
    b_beta = tl.where(m_t, sigmoid(b_b), 0.0)
    b_G = tl.cumsum(b_g, 0)
    at = i_n.to(tl.int64) * H + i_h
    tl.store(decay + at * 64 + o_t, b_G)
    tl.store(strength + at * 64 + o_t, b_beta)
    q = qk + (i_n.to(tl.int64) * (2 * G) + i_g) * (64 * K)
    k = q + G * 64 * K

    b_q, b_k = tl.load(q + o_t[:, None] * K + o_k[None, :]), tl.load(k + o_t[:, None] * K + o_k[None, :])
    b_P = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    b_D = tl.where(o_t[:, None] >= o_t[None, :], b_G[:, None] - b_G[None, :], float("-inf"))
    within += at * 4096 + o_t[:, None] * 64 + o_t[None, :]
    tl.store(within, (b_P * tl.exp(b_D)).to(within.dtype.element_ty))

    # the blocks of 16 on the diagonal
    o_s = tl.arange(0, 16)
    o_4 = tl.arange(0, 4)[:, None] * 16 + o_s[None, :]
    b_k4 = tl.load(k + o_4[:, :, None] * K + o_k[None, None, :])
    b_G4, b_beta4 = tl.reshape(b_G, [4, 16]), tl.reshape(b_beta, [4, 16])
    b_kk = tl.dot(b_k4, tl.permute(b_k4, (0, 2, 1)), input_precision=PRECISION)
    b_from = tl.where((o_s[:, None] < o_s[None, :])[None], b_G4[:, None, :] - b_G4[:, :, None], float("-inf"))
    b_X = inverses_16(b_kk * b_beta4[:, None, :] * tl.exp(b_from))

    # pairs of them to 32: the block below is -X_low L X_high
    o_2 = tl.arange(0, 2)[:, None] * 32 + o_s[None, :]
    b_high = tl.load(k + o_2[:, :, None] * K + o_k[None, None, :])
    b_low = tl.load(k + (o_2[:, :, None] + 16) * K + o_k[None, None, :])
    b_G_high, b_G_low = vector_pairs(b_G4)
    _, b_beta_low = vector_pairs(b_beta4)
    b_X_high, b_X_low = block_pairs(b_X)
    b_kk = tl.dot(b_low, tl.permute(b_high, (0, 2, 1)), input_precision=PRECISION)
    b_below = tl.dot(scaled(b_kk, b_beta_low, b_G_low, b_G_high), b_X_high, input_precision="ieee")
    b_below = -tl.dot(b_X_low, b_below, input_precision="ieee")
    b_columns = tl.join(tl.join(b_X_high, b_below), tl.join(tl.zeros_like(b_below), b_X_low))
    b_X = tl.reshape(tl.permute(b_columns, (0, 3, 1, 4, 2)), [2, 32, 32])

    # and the two of 32 to 64
    o_h = tl.arange(0, 32)
    b_first = tl.load(k + o_h[:, None] * K + o_k[None, :])
    b_second = tl.load(k + (o_h[:, None] + 32) * K + o_k[None, :])
    b_G_first, b_G_second = tl.split(tl.permute(tl.reshape(b_G, [2, 32]), (1, 0)))
    _, b_beta_second = tl.split(tl.permute(tl.reshape(b_beta, [2, 32]), (1, 0)))
    b_X_first, b_X_second = tl.split(tl.permute(b_X, (1, 2, 0)))
    b_kk = tl.dot(b_second, tl.trans(b_first), input_precision=PRECISION)
    b_kk = b_kk * b_beta_second[:, None] * tl.exp(b_G_second[:, None] - b_G_first[None, :])
    b_below = -tl.dot(b_X_second, tl.dot(b_kk, b_X_first, input_precision="ieee"), input_precision="ieee")

    inverse += at * 4096
    o_X = o_h[:, None] * 64 + o_h[None, :]
    tl.store(inverse + o_X, b_X_first.to(inverse.dtype.element_ty))
    tl.store(inverse + o_X + 32, tl.zeros([32, 32], inverse.dtype.element_ty))
    tl.store(inverse + o_X + 2048, b_below.to(inverse.dtype.element_ty))
    tl.store(inverse + o_X + 2080, b_X_second.to(inverse.dtype.element_ty))


@triton.jit
def walk_kernel(
    qk, v, x, history, state, inverse, within, decay, strength, o, firsts, widths, slots, row_chunks, stride_x,
    G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, TAPS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row, BV rows of one value head's state, over all its chunks; then the row's history, which nobody reads any
    more. o: [T, H, V]; row_chunks: [B] each row's first chunk; the rest as in the kernels before."""
    C: tl.constexpr = 2 * G * K + H * V
    VS: tl.constexpr = (V + BV - 1) // BV
    FACTOR: tl.constexpr = qk.dtype.element_ty
    i_h, i_v, i_b = tl.program_id(0) // VS, tl.program_id(0) % VS, tl.program_id(1)
    i_g = i_h // (H // G)
    o_t, o_k, o_v = tl.arange(0, 64), tl.arange(0, K), i_v * BV + tl.arange(0, BV)
    m_v = o_v < V
    begin_alone(PDL)
    first, width, slot = tl.load(firsts + i_b), tl.load(widths + i_b).to(tl.int32), tl.load(slots + i_b)
    own = state + ((slot * H + i_h) * V + o_v[:, None]) * K + o_k[None, :]
    b_S = tl.load(own, mask=m_v[:, None], other=0.0).to(tl.float32)
    chunk = tl.load(row_chunks + i_b)
    o_tk, o_vt, o_tt = (
        o_t[:, None] * K + o_k[None, :],
        o_v[:, None] * 64 + o_t[None, :],
        o_t[:, None] * 64 + o_t[None, :],
    )
    o += (first * H + i_h) * V
    for n in tl.range(0, tl.cdiv(width, 64), num_stages=STAGES):
        q, at = qk + ((chunk + n) * (2 * G) + i_g) * (64 * K), (chunk + n) * H + i_h
        b_k, b_q = tl.load(q + G * 64 * K + o_tk), tl.load(q + o_tk)
        b_v = tl.load(v + at * (V * 64) + o_vt, mask=m_v[:, None], other=0.0)
        b_inverse, b_within = tl.load(inverse + at * 4096 + o_tt), tl.load(within + at * 4096 + o_tt)
        b_G, b_beta = tl.load(decay + at * 64 + o_t), tl.load(strength + at * 64 + o_t)
        last, b_grown = tl.load(decay + at * 64 + 63), tl.exp(b_G)

        b_factor = b_S.to(FACTOR)
        b_r = tl.dot(b_factor, tl.trans(b_k), input_precision=PRECISION)
        b_r = (b_v.to(tl.float32) - b_r * b_grown[None, :]) * b_beta[None, :]
        b_u = tl.dot(b_r.to(FACTOR), tl.trans(b_inverse), input_precision=PRECISION)
        b_o = tl.dot(b_factor, tl.trans(b_q), input_precision=PRECISION) * b_grown[None, :]
        b_o = tl.dot(b_u.to(FACTOR), tl.trans(b_within), b_o, input_precision=PRECISION)
        b_left = (b_u * tl.exp(last - b_G)[None, :]).to(FACTOR)
        b_S = tl.dot(b_left, b_k, b_S * tl.exp(last), input_precision=PRECISION)
        o_at = o + (n * 64 + o_t)[:, None].to(tl.int64) * (H * V) + o_v[None, :]
        m_o = (n * 64 + o_t < width)[:, None] & m_v[None, :]
        tl.store(o_at, tl.trans(b_o.to(o.dtype.element_ty)), mask=m_o)
    tl.store(own, stored(b_S, state.dtype.element_ty), mask=m_v[:, None])
    history += slot * (TAPS - 1) * C
    x += first * stride_x
    moved_history(x, history, width, 2 * G * K + i_h * V + o_v, m_v, C, stride_x, TAPS)
    if (i_v == 0) & (i_h % (H // G) == 0):
        moved_history(x, history, width, i_g * K + o_k, o_k < K, C, stride_x, TAPS)
        moved_history(x, history, width, (G + i_g) * K + o_k, o_k < K, C, stride_x, TAPS)


@triton.jit
def gated_norm_kernel(
    o, x, norm, y, ROWS, stride_x, offset, eps,
    H: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = rms_norm(o) * SiLU(z), BR heads of tokens. o, y: [T, H, V], T * H = ROWS; z: ``offset`` after the start of
    x's tokens, ``stride_x`` apart; norm: [V] fp32."""
    begin(PDL)
    o_r, o_v = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), tl.arange(0, BV)
    m = (o_r < ROWS)[:, None] & (o_v < V)[None, :]
    b_o = tl.load(o + o_r[:, None] * V + o_v[None, :], mask=m, other=0.0).to(tl.float32)
    o_z = (o_r // H * stride_x + offset + o_r % H * V)[:, None] + o_v[None, :]
    b_z = tl.load(x + o_z, mask=m, other=0.0).to(tl.float32)
    b_norm = tl.load(norm + o_v, mask=o_v < V, other=0.0)
    b_y = b_o * tl.rsqrt(tl.sum(b_o * b_o, 1) / V + eps)[:, None] * b_norm[None, :] * (b_z * sigmoid(b_z))
    tl.store(y + o_r[:, None] * V + o_v[None, :], b_y.to(y.dtype.element_ty), mask=m)
