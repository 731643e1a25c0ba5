"""A dense matrix times a few rows, in Triton: the matrix is read once, at the speed of memory.

Legend: T rows of activations, N outputs, K inputs.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin


@triton.jit
def few_rows_kernel(
    x,
    w,
    y,
    T,
    N,
    K,
    stride_x,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """x: [T, K], rows ``stride_x`` apart, T <= BT; w: [N, K]; y: [T, N]. BN outputs of all rows on the tensor cores.

    GROUPS neighbouring pieces of BK inputs are summed side by side, each by warps of its own, and added up at the end:
    a program then needs few outputs to be fast, so that matrices of few outputs still fill the GPU.
    """
    begin(PDL)
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_t = tl.arange(0, BT)
    m_n, m_t = o_n < N, o_t < T
    if GROUPS == 1:
        b_y = tl.zeros([BN, BT], tl.float32)
        for k in range(0, K, BK):
            o_k = k + tl.arange(0, BK)
            m_k = o_k < K
            b_w = tl.load(w + o_n[:, None] * K + o_k[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
            b_x = tl.load(x + o_t[None, :] * stride_x + o_k[:, None], mask=m_t[None, :] & m_k[:, None], other=0.0)
            b_y = tl.dot(b_w, b_x, b_y)
    else:
        o_g = tl.arange(0, GROUPS)[:, None, None] * BK
        o_w = o_g + tl.arange(0, BK)[None, None, :]
        o_x = o_g + tl.arange(0, BK)[None, :, None]
        p_w = w + o_n[None, :, None] * K + o_w
        p_x = x + o_t[None, None, :] * stride_x + o_x
        b_acc = tl.zeros([GROUPS, BN, BT], tl.float32)
        for k in range(0, K, GROUPS * BK):
            b_wide = tl.load(p_w + k, mask=m_n[None, :, None] & (o_w < K - k), other=0.0)
            b_rows = tl.load(p_x + k, mask=m_t[None, None, :] & (o_x < K - k), other=0.0)
            b_acc = tl.dot(b_wide, b_rows, b_acc)
        b_y = tl.sum(b_acc, 0)
    tl.store(y + o_t[None, :] * N + o_n[:, None], b_y.to(y.dtype.element_ty), mask=m_n[:, None] & m_t[None, :])
