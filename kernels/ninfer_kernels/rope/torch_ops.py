"""Rotary embedding in few torch calls; the angles of a step are computed once and serve every layer."""

from torch import Tensor


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``reference.rotate``, contiguous; x may be a view of a stacked projection."""
    x = x_THD.float()
    out = x * cos
    a, b = x.chunk(2, dim=-1)
    a_out, b_out = out.chunk(2, dim=-1)
    a_out.addcmul_(b, sin, value=-1)
    b_out.addcmul_(a, sin)
    # a strided x gives a strided product where torch keeps its layout
    return out.to(x_THD.dtype).contiguous()
