"""The s8 row codec as a device function for fused attention, in Triton."""

import triton
import triton.language as tl


@triton.jit
def decode(codes, scales, rows, o_d, mask, D: tl.constexpr):
    """``reference.decode`` of rows [L] of the planes: [L, D] fp32. The signature is that of every codec's function."""
    b_code = tl.load(codes + rows[:, None] * D + o_d[None, :], mask=mask[:, None], other=0)
    b_scale = tl.load(scales + rows[:, None] * (D // 64) + (o_d // 64)[None, :], mask=mask[:, None], other=0.0)
    return b_code.to(tl.float32) * b_scale.to(tl.float32)
