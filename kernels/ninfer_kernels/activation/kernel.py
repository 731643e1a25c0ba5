"""Gated activations in Triton: fp32 inside, one rounding at the end. Legend: T tokens, H heads, D elements."""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin


@triton.jit
def swiglu_kernel(gate_up, y, stride, N, BN: tl.constexpr, PDL: tl.constexpr):
    """y = g * sigmoid(g) * u. gate_up: [T, 2N], rows ``stride`` apart; y: [T, N]. BN elements of one row."""
    begin(PDL)
    i_t = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < N
    b_g = tl.load(gate_up + i_t * stride + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_u = tl.load(gate_up + i_t * stride + N + o_n, mask=m_n, other=0.0).to(tl.float32)
    b_y = b_g / (1.0 + tl.exp(-b_g)) * b_u
    tl.store(y + i_t * N + o_n, b_y.to(y.dtype.element_ty), mask=m_n)


@triton.jit
def sigmoid_gate_kernel(
    x,
    gate,
    y,
    stride_t,
    stride_h,
    gate_t,
    gate_h,
    gate_d,
    H: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
    PDL: tl.constexpr,
):
    """y = x * sigmoid(gate), BD elements of BH heads. x, y: [T, H, D]; gate likewise, any stride of it may be 0."""
    begin(PDL)
    i_t = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    o_d = tl.program_id(2) * BD + tl.arange(0, BD)[None, :]
    m = (o_h < H) & (o_d < D)
    b_x = tl.load(x + i_t * stride_t + o_h * stride_h + o_d, mask=m, other=0.0).to(tl.float32)
    b_g = tl.load(gate + i_t * gate_t + o_h * gate_h + o_d * gate_d, mask=m, other=0.0).to(tl.float32)
    b_y = b_x / (1.0 + tl.exp(-b_g))
    tl.store(y + (i_t * H + o_h) * D + o_d, b_y.to(y.dtype.element_ty), mask=m)
