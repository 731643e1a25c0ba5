"""Norms in Triton: a program reads its rows once and rounds once.

Legend: T tokens, H heads of a token (1 for a norm over the whole row), D elements of a head.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin


@triton.jit
def rms_norm_kernel(
    x,
    weight,
    y,
    eps,
    stride_t,
    stride_h,
    stride_w,
    H: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PDL: tl.constexpr,
):
    """y = x / sqrt(mean(x^2) + eps) * weight of one head. x: [T, H, D], its rows contiguous; weight: heads ``stride_w``
    apart; y: [T, H, D]."""
    begin(PDL)
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_x = tl.load(x + i_t * stride_t + i_h * stride_h + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_w = tl.load(weight + i_h * stride_w + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps) * b_w
    tl.store(y + (i_t * H + i_h) * D + o_d, b_y.to(y.dtype.element_ty), mask=m_d)


@triton.jit
def add_rms_norm_kernel(
    x, delta, weight, y, eps, stride_x, stride_delta, D: tl.constexpr, BD: tl.constexpr, PDL: tl.constexpr
):
    """x += delta, rounded; y = rms_norm(x). x, delta: [T, D], their rows contiguous; y: [T, D]."""
    begin(PDL)
    i_t = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_x = tl.load(x + i_t * stride_x + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_x += tl.load(delta + i_t * stride_delta + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_kept = b_x.to(x.dtype.element_ty)
    tl.store(x + i_t * stride_x + o_d, b_kept, mask=m_d)
    # the norm is of what was stored
    b_x = b_kept.to(tl.float32)
    b_w = tl.load(weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps) * b_w
    tl.store(y + i_t * D + o_d, b_y.to(y.dtype.element_ty), mask=m_d)


@triton.jit
def gated_rms_norm_kernel(
    x,
    gate,
    weight,
    y,
    eps,
    stride_t,
    stride_h,
    gate_t,
    gate_h,
    H: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PDL: tl.constexpr,
):
    """y = rms_norm(x) * SiLU(gate) of one head. x, gate, y: [T, H, D], their rows contiguous; weight: [D]."""
    begin(PDL)
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_x = tl.load(x + i_t * stride_t + i_h * stride_h + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_g = tl.load(gate + i_t * gate_t + i_h * gate_h + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_w = tl.load(weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps) * b_w
    b_y = b_y * b_g / (1.0 + tl.exp(-b_g))
    tl.store(y + (i_t * H + i_h) * D + o_d, b_y.to(y.dtype.element_ty), mask=m_d)
