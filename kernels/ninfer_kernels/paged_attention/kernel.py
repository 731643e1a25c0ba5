"""Paged attention for GPUs, in Triton: one kernel for decode, verify and prefill over any stored form.

Legend: B rows, T tokens of the step, H query heads, G KV heads, R = H / G query heads of a KV head, D head dimension,
P = 64 tokens a page. The R * width queries a KV head has in one row lie side by side, token by token, and are cut into
blocks; a program takes one block, one KV head and one share of the row's pages. Where pages are shared out, a second
kernel merges the shares (Dao et al. 2023, "Flash-Decoding"). Lengths and tables are read from device memory, so one
launch serves every context.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

PAGE = 64


@triton.jit
def decode_cast(plane, _, rows, o_d, mask, D: tl.constexpr):
    """A stored form of one plane whose elements are the values: [L, D] as stored.

    plane: seen as [rows, D]; rows: [L] int64; mask: [L], the tokens that exist. Every codec's function has this
    signature; the second plane is the first again where there is only one.
    """
    return tl.load(plane + rows[:, None] * D + o_d[None, :], mask=mask[:, None], other=0.0)


@triton.jit
def attend_kernel(
    q,
    k_0,
    k_1,
    v_0,
    v_1,
    out,
    partial,
    logsum,
    table,
    firsts,
    widths,
    frontiers,
    scale,
    stride_q,
    stride_table,
    BLOCKS,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    SHARES: tl.constexpr,
    P: tl.constexpr,
    DECODE_K: tl.constexpr,
    DECODE_V: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """q: [T, H, D], rows ``stride_q`` apart; planes: [pages, G, P, width]; table: [B, N], firsts, widths and frontiers:
    [B] int64; row b has tokens firsts[b] .. firsts[b] + widths[b] - 1 of the step, the others are not written. out:
    [T, H, D]; partial: [T, H, SHARES, D] and logsum: [T, H, SHARES] fp32, unused for one share. Scores, their softmax
    and the sums are fp32; products take q's dtype."""
    begin(PDL)
    R: tl.constexpr = H // G
    i_b = tl.program_id(0) // BLOCKS
    i_q = tl.program_id(0) % BLOCKS
    i_g = tl.program_id(1)
    i_s = tl.program_id(2)
    first_token = tl.load(firsts + i_b)
    width = tl.load(widths + i_b).to(tl.int32)
    frontier = tl.load(frontiers + i_b).to(tl.int32)
    if i_q * BQ >= width * R:
        return
    o_q = i_q * BQ + tl.arange(0, BQ)
    o_t = o_q // R
    m_q = o_t < width
    o_d = tl.arange(0, D)
    o_row = (first_token + o_t).to(tl.int64)
    o_h = i_g * R + o_q % R
    b_q = tl.load(q + o_row[:, None] * stride_q + o_h[:, None] * D + o_d[None, :], mask=m_q[:, None], other=0.0)
    # what the block's last token sees, and this program's share of it
    length = frontier + tl.minimum(((i_q + 1) * BQ - 1) // R + 1, width)
    pages = tl.cdiv(length, P)
    share = tl.cdiv(pages, SHARES)
    first = i_s * share
    last = tl.minimum(first + share, pages)
    b_max = tl.full([BQ], float("-inf"), tl.float32)
    b_sum = tl.zeros([BQ], tl.float32)
    b_acc = tl.zeros([BQ, D], tl.float32)
    for p in range(first, last):
        page = tl.load(table + i_b.to(tl.int64) * stride_table + p)
        o_l = p * P + tl.arange(0, P)
        rows = (page * G + i_g) * P + tl.arange(0, P)
        m_l = o_l < length
        b_k = DECODE_K(k_0, k_1, rows, o_d, m_l, D).to(b_q.dtype)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        b_s = tl.where(o_l[None, :] <= (frontier + o_t)[:, None], b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        # a block whose early tokens see nothing of this page yet: exp(-inf - -inf) must not arise
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_p = tl.exp(b_s - b_base[:, None])
        b_old = tl.exp(b_max - b_base)
        b_sum = b_sum * b_old + tl.sum(b_p, 1)
        b_v = DECODE_V(v_0, v_1, rows, o_d, m_l, D).to(b_q.dtype)
        b_acc = b_acc * b_old[:, None] + tl.dot(b_p.to(b_q.dtype), b_v, input_precision=PRECISION)
        b_max = b_new
    # an empty share has no sum; its weight in the merge is zero
    b_some = tl.where(b_sum == 0, 1.0, b_sum)
    b_acc = b_acc / b_some[:, None]
    o_out = o_row * H + o_h
    if SHARES == 1:
        tl.store(out + o_out[:, None] * D + o_d[None, :], b_acc.to(out.dtype.element_ty), mask=m_q[:, None])
    else:
        o_part = o_out * SHARES + i_s
        tl.store(partial + o_part[:, None] * D + o_d[None, :], b_acc, mask=m_q[:, None])
        b_log = tl.where(b_sum == 0, float("-inf"), b_max + tl.log(b_some))
        tl.store(logsum + o_part, b_log, mask=m_q)


@triton.jit
def merge_kernel(partial, logsum, out, D: tl.constexpr, SHARES: tl.constexpr, BS: tl.constexpr, PDL: tl.constexpr):
    """One (token, head): out = sum of partial weighted by softmax of logsum over the shares."""
    begin(PDL)
    i = tl.program_id(0).to(tl.int64)
    o_s, o_d = tl.arange(0, BS), tl.arange(0, D)
    m_s = o_s < SHARES
    b_log = tl.load(logsum + i * SHARES + o_s, mask=m_s, other=float("-inf"))
    b_weight = tl.exp(b_log - tl.max(b_log, 0))
    b_part = tl.load(partial + (i * SHARES + o_s)[:, None] * D + o_d[None, :], mask=m_s[:, None], other=0.0)
    b_out = tl.sum(b_weight[:, None] * b_part, 0) / tl.sum(b_weight, 0)
    tl.store(out + i * D + o_d, b_out.to(out.dtype.element_ty))
