"""The s8 row codec as device functions for fused attention and storing, in Triton."""

import triton
import triton.language as tl

from ninfer_kernels.hadamard.kernel import rotate

# added and taken away again it leaves the nearest integer, ties to even
ROUND = tl.constexpr(12582912.0)
LARGEST = tl.constexpr(65504.0)  # of fp16


@triton.jit
def decode(codes, scales, rows, o_d, mask, D: tl.constexpr):
    """``reference.decode`` of rows [L] of the planes: [L, D] fp32. The signature is that of every codec's function."""
    b_code = tl.load(codes + rows[:, None] * D + o_d[None, :], mask=mask[:, None], other=0)
    b_scale = tl.load(scales + rows[:, None] * (D // 64) + (o_d // 64)[None, :], mask=mask[:, None], other=0.0)
    return b_code.to(tl.float32) * b_scale.to(tl.float32)


@triton.jit
def encode(b_x, codes, scales, rows, mask, D: tl.constexpr):
    """``reference.encode`` of b_x [L, D], rounded to bf16 first, into rows [L] of the planes, to the bit."""
    _encode(b_x.to(tl.bfloat16).to(tl.float32), codes, scales, rows, mask, D)


@triton.jit
def encode_rotated(b_x, codes, scales, rows, mask, D: tl.constexpr):
    """As ``encode``, the rounded rows rotated in between."""
    _encode(rotate(b_x.to(tl.bfloat16).to(tl.float32), D), codes, scales, rows, mask, D)


@triton.jit
def _encode(b_x, codes, scales, rows, mask, D: tl.constexpr):
    L: tl.constexpr = b_x.shape[0]
    b_x = tl.reshape(b_x, [L, D // 64, 64])
    b_a = tl.abs(b_x)
    bad = tl.max((b_a != b_a).to(tl.int32), 2) > 0  # a NaN loses every comparison, and must show
    b_s = tl.minimum(tl.div_rn(tl.max(b_a, 2), 127.0), LARGEST)
    b_s = tl.where(bad, float("nan"), b_s).to(tl.float16)
    b_f = b_s.to(tl.float32)
    b_inverse = tl.where(b_f > 0, tl.div_rn(1.0, tl.where(b_f > 0, b_f, 1.0)), 0.0)
    b_q = b_x * b_inverse[:, :, None]
    b_q = tl.where(b_q != b_q, 0.0, tl.minimum(tl.maximum(b_q, -127.0), 127.0))
    b_q = (b_q + ROUND) - ROUND
    o_s = tl.arange(0, D // 64)
    tl.store(scales + rows[:, None] * (D // 64) + o_s[None, :], b_s, mask=mask[:, None])
    o_d = o_s[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(codes + rows[:, None, None] * D + o_d[None, :, :], b_q.to(tl.int8), mask=mask[:, None, None])
