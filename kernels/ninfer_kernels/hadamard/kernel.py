"""The rotation in Triton, as a kernel and as a function for others. Legend: L rows, D elements."""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

STEPS: tl.constexpr = tl.constexpr(9)
WIDEST = 1 << STEPS.value  # elements


@triton.jit
def rotate(b_x, D: tl.constexpr):
    """``reference.rotate`` of b_x [L, D] fp32, to the bit: sums in the order of the definition."""
    for i in tl.static_range(STEPS):
        if 1 << i < D:
            b_x = _pairs(b_x, D, 1 << i)
    FACTOR: tl.constexpr = D**-0.5
    return b_x * FACTOR


@triton.jit
def _pairs(b_x, D: tl.constexpr, STRIDE: tl.constexpr):
    """Pairs at one stride become (a + b, a - b)."""
    L: tl.constexpr = b_x.shape[0]
    b_p = tl.permute(tl.reshape(b_x, [L, D // (2 * STRIDE), 2, STRIDE]), [0, 1, 3, 2])
    b_a, b_b = tl.split(b_p)
    return tl.reshape(tl.permute(tl.join(b_a + b_b, b_a - b_b), [0, 1, 3, 2]), [L, D])


@triton.jit
def rotate_kernel(x, y, R, stride_x, D: tl.constexpr, BR: tl.constexpr, PDL: tl.constexpr):
    """BR rows of x [R, D], ``stride_x`` apart; y: [R, D] fp32."""
    begin(PDL)
    o_r = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    o_d = tl.arange(0, D)
    m_r = o_r < R
    b_x = tl.load(x + o_r[:, None] * stride_x + o_d[None, :], mask=m_r[:, None], other=0.0).to(tl.float32)
    tl.store(y + o_r[:, None] * D + o_d[None, :], rotate(b_x, D), mask=m_r[:, None])
