"""Keys and values of a step into their pages, in Triton: one kernel for any stored form.

Legend: T tokens, G KV heads, D head dimension; a row is one head of one token.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin


@triton.jit
def encode_cast(b_x, plane, _, rows, mask, D: tl.constexpr):
    """A stored form of one plane whose elements are the values. Every codec's function has this signature.

    b_x: [L, D] as the model computed them; rows: [L] int64, where they belong in the planes seen as [rows, X]; mask:
    [L], the rows that exist. The second plane is the first again where there is only one.
    """
    o_d = tl.arange(0, D)
    tl.store(plane + rows[:, None] * D + o_d[None, :], b_x.to(plane.dtype.element_ty), mask=mask[:, None])


@triton.jit
def store_kernel(
    k, v, k_0, k_1, v_0, v_1, slots, R, k_t, k_g, v_t, v_g,
    G: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BR: tl.constexpr,
    ENCODE_K: tl.constexpr, ENCODE_V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BR of R = T * G rows, of keys and of values alike. k, v: [T, G, D], their rows contiguous; slots: [T] int64, page
    times P and the place in it; planes: [pages, G, P, X]."""
    begin(PDL)
    o_r = tl.program_id(0) * BR + tl.arange(0, BR)
    m_r = o_r < R
    o_d = tl.arange(0, D)
    o_t, o_g = (o_r // G).to(tl.int64), o_r % G
    b_s = tl.load(slots + o_t, mask=m_r, other=0)
    rows = (b_s // P * G + o_g) * P + b_s % P
    b_k = tl.load(k + (o_t * k_t + o_g * k_g)[:, None] + o_d[None, :], mask=m_r[:, None], other=0.0)
    ENCODE_K(b_k, k_0, k_1, rows, m_r, D)
    b_v = tl.load(v + (o_t * v_t + o_g * v_g)[:, None] + o_d[None, :], mask=m_r[:, None], other=0.0)
    ENCODE_V(b_v, v_0, v_1, rows, m_r, D)
