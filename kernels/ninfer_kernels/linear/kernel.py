"""A dense matrix times a few rows, in Triton: the matrix is read once, at the speed of memory.

Legend: T rows of activations, N outputs, K inputs.
"""

import triton
import triton.language as tl


@triton.jit
def few_rows_kernel(x, w, y, T, N, K, stride_x, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """x: [T, K], rows ``stride_x`` apart, T <= BT; w: [N, K]; y: [T, N]. BN outputs of all rows on the tensor cores."""
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_t = tl.arange(0, BT)
    m_n, m_t = o_n < N, o_t < T
    b_acc = tl.zeros([BN, BT], tl.float32)
    for k in range(0, K, BK):
        o_k = k + tl.arange(0, BK)
        m_k = o_k < K
        b_w = tl.load(w + o_n[:, None] * K + o_k[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
        b_x = tl.load(x + o_t[None, :] * stride_x + o_k[:, None], mask=m_t[None, :] & m_k[:, None], other=0.0)
        b_acc = tl.dot(b_w, b_x, b_acc)
    tl.store(y + o_t[None, :] * N + o_n[:, None], b_acc.to(y.dtype.element_ty), mask=m_n[:, None] & m_t[None, :])
