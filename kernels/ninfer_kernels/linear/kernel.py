"""A dense matrix times a few rows, in Triton: the matrix is read once, at the speed of memory.

Legend: T rows of activations, N outputs, K inputs.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin_in_turn, end_in_turn
from ninfer_kernels.splits import added_up, comes_last


@triton.jit
def products(
    x, w, first, last, o_n, m_n, o_t, m_t, K, stride_x, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """Products of outputs ``o_n`` and rows ``o_t`` over inputs ``first`` to ``last``, [BN, BT] fp32."""
    b_y = tl.zeros([BN, BT], tl.float32)
    for k in range(first, last, BK):
        o_k = k + tl.arange(0, BK)
        m_k = o_k < K
        b_w = tl.load(w + o_n[:, None] * K + o_k[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
        p_x = x + o_t[None, :] * stride_x + o_k[:, None]
        b_x = tl.load(p_x, mask=m_t[None, :] & m_k[:, None], other=0.0, cache_modifier=CACHE)
        b_y = tl.dot(b_w, b_x, b_y)
    return b_y


@triton.jit
def products_of_groups(
    x, w, first, last, o_n, m_n, o_t, m_t, K, stride_x, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUPS: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """``products`` with GROUPS neighbouring pieces of BK inputs side by side, added up at the end."""
    o_g = tl.arange(0, GROUPS)[:, None, None] * BK
    o_w = o_g + tl.arange(0, BK)[None, None, :]
    o_x = o_g + tl.arange(0, BK)[None, :, None]
    p_w = w + o_n[None, :, None] * K + o_w
    p_x = x + o_t[None, None, :] * stride_x + o_x
    b_acc = tl.zeros([GROUPS, BN, BT], tl.float32)
    for k in range(first, last, GROUPS * BK):
        b_w = tl.load(p_w + k, mask=m_n[None, :, None] & (o_w < K - k), other=0.0)
        m_x = m_t[None, None, :] & (o_x < K - k)
        b_x = tl.load(p_x + k, mask=m_x, other=0.0, cache_modifier=CACHE)
        b_acc = tl.dot(b_w, b_x, b_acc)
    return tl.sum(b_acc, 0)


@triton.jit
def few_rows_kernel(
    x, w, y, sums, tickets, T, N, K, stride_x, stride_y, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUPS: tl.constexpr, SPLITS: tl.constexpr, TURN: tl.constexpr, CACHE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x: [T, K], rows ``stride_x`` apart, T <= BT; w: [N, K]; y: [T, N], rows ``stride_y`` apart. BN outputs of all
    rows on the tensor cores. CACHE: how x is read.

    GROUPS neighbouring pieces of BK inputs are summed side by side, each by warps of its own, and added up at the end:
    a program then needs few outputs to be fast, so that matrices of few outputs still fill the GPU.

    SPLITS programs share out the inputs of the same outputs, to the same end. Each leaves its sums in ``sums``
    [T, blocks of outputs, SPLITS, BN] fp32; the last to come, as ``tickets`` [blocks of outputs] tells, adds them up.
    """
    i_n = tl.program_id(0)
    o_n = i_n.to(tl.int64) * BN + tl.arange(0, BN)
    o_t = tl.arange(0, BT)
    m_n, m_t = o_n < N, o_t < T
    first, last = 0, K
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(K, GROUPS * BK), SPLITS) * (GROUPS * BK)
        first = tl.program_id(1) * share
        last = tl.minimum(first + share, K)
    begin_in_turn(TURN, PDL)
    if GROUPS == 1:
        b_y = products(x, w, first, last, o_n, m_n, o_t, m_t, K, stride_x, BT, BN, BK, CACHE)
    else:
        b_y = products_of_groups(x, w, first, last, o_n, m_n, o_t, m_t, K, stride_x, BT, BN, BK, GROUPS, CACHE)
    p_y, m_y = y + o_t[None, :].to(tl.int64) * stride_y + o_n[:, None], m_n[:, None] & m_t[None, :]
    if SPLITS == 1:
        tl.store(p_y, b_y.to(y.dtype.element_ty), mask=m_y)
    else:
        at = (o_t[None, :].to(tl.int64) * tl.num_programs(0) + i_n) * (SPLITS * BN)
        p_sums = sums + at + tl.arange(0, BN)[:, None]
        tl.store(p_sums + tl.program_id(1) * BN, b_y, mask=m_t[None, :])
        if comes_last(tickets + i_n, SPLITS):
            b_all = added_up(p_sums, BN, SPLITS, m_t[None, :])
            tl.store(p_y, b_all.to(y.dtype.element_ty), mask=m_y)
    end_in_turn(TURN, PDL)
