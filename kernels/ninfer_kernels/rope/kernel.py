"""Rotary embedding in Triton: the angles of a step, and their application, alone or after the norm of each head.

Legend: T tokens, H heads, D elements of a head, R of them turned.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin


@triton.jit
def angles_kernel(
    positions, frequencies, axes, cos, sin, factor, stride_a, stride_t,
    HALF: tl.constexpr, BH: tl.constexpr, AXES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token. positions: [A, T], whole or fp32; frequencies: [R / 2] fp32; axes: [R / 2] int64, which of the A
    positions each pair turns by (AXES, else the first); cos: [T, R], sin: [T, R / 2] fp32, both times ``factor``."""
    i_t = tl.program_id(0).to(tl.int64)
    o_r = tl.arange(0, BH)
    m_r = o_r < HALF
    b_f = tl.load(frequencies + o_r, mask=m_r, other=0.0)
    o_a = tl.zeros([BH], tl.int64)
    if AXES:
        o_a = tl.load(axes + o_r, mask=m_r, other=0) * stride_a
    begin(PDL)
    # rounded before it is turned into an angle, as fp32 positions are
    b_x = tl.load(positions + o_a + i_t * stride_t, mask=m_r, other=0).to(tl.float32) * b_f
    # these two reduce angles of any size, where ``*.approx`` would lose those of long contexts
    b_c = tl.cos(b_x) * factor
    tl.store(cos + i_t * (2 * HALF) + o_r, b_c, mask=m_r)
    tl.store(cos + i_t * (2 * HALF) + HALF + o_r, b_c, mask=m_r)
    tl.store(sin + i_t * HALF + o_r, tl.sin(b_x) * factor, mask=m_r)


@triton.jit
def rotate_kernel(
    x, weight, cos, sin, y, eps, stride_t, stride_h,
    H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head. x: [T, H, D], its rows contiguous; weight: [H, D] fp32 (NORM); cos: [T, R], sin: [T, R / 2] fp32; y:
    [T, H, D]. Elements r and r + R/2 are a pair; with NORM they are normed and rounded to y's type first."""
    begin(PDL)
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = R // 2
    o_d = tl.arange(0, BD)
    m_d, m_r = o_d < D, o_d < R
    first = o_d < HALF
    # the other half of each pair; what is not turned is its own
    o_p = tl.where(first, o_d + HALF, tl.where(m_r, o_d - HALF, o_d))
    own = x + i_t * stride_t + i_h * stride_h
    b_x = tl.load(own + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_p = tl.load(own + o_p, mask=m_d, other=0.0).to(tl.float32)
    if NORM:
        b_scale = tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps)
        b_x = b_x * b_scale * tl.load(weight + i_h * D + o_d, mask=m_d, other=0.0)
        b_p = b_p * b_scale * tl.load(weight + i_h * D + o_p, mask=m_d, other=0.0)
        b_x = b_x.to(y.dtype.element_ty).to(tl.float32)
        b_p = b_p.to(y.dtype.element_ty).to(tl.float32)
    o_a = tl.where(first, o_d, o_d - HALF)
    b_c = tl.load(cos + i_t * R + o_a, mask=m_r, other=1.0)
    b_s = tl.load(sin + i_t * HALF + o_a, mask=m_r, other=0.0)
    b_y = b_x * b_c + tl.where(first, -b_p, b_p) * b_s
    tl.store(y + (i_t * H + i_h) * D + o_d, b_y.to(y.dtype.element_ty), mask=m_d)
