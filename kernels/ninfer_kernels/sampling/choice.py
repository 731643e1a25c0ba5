"""The choice among ordered candidates, in Triton: truncation, the counter RNG and the draw (``reference``, ``rng``).

A column's candidates fill one warp, a lane each, so that nothing here waits for another warp.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """The finalizer of splitmix64 (``rng.mix``)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, position, purpose):
    """``rng.uniform``: fp32 in [0, 1) with 24 bits."""
    key = _mix(seed ^ (position * 0xD1B54A32D192ED03))
    key = _mix(key ^ (purpose << 21))
    return (key >> 40).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _largest(x):
    """Of fp32 that are not negative: their bits sort as they do, and a warp compares whole numbers at once."""
    return tl.max(x.to(tl.int32, bitcast=True), 0).to(tl.float32, bitcast=True)


@triton.jit
def _running_sums(b_w, o_k, K: tl.constexpr, KP: tl.constexpr):
    """Of weights [KP] in rank order, each sum added up one by one as the reference has it; past K the last is repeated.
    Every lane adds all weights up to its own: the weights are handed round beside the additions, not between them."""
    b_run = tl.zeros([KP], tl.float32)
    for i in tl.static_range(K):
        weight = _largest(tl.where(o_k == i, b_w, 0.0))
        b_run += tl.where(o_k >= i, weight, 0.0)
    return b_run


@triton.jit
def chosen(b_w, o_k, top_p, min_p, u, K: tl.constexpr, KP: tl.constexpr):
    """The rank drawn by ``u`` among weights [KP], of which the first is one, already cut to top-k."""
    b_run = _running_sums(b_w, o_k, K, KP)
    enough = tl.where(top_p < 1, top_p * _largest(b_run), float("inf"))
    # the weights kept are the first so many
    b_cut = tl.where((o_k > 0) & (b_w < min_p), o_k, K)
    b_cut = tl.minimum(b_cut, tl.where(b_run >= enough, o_k + 1, K))
    m_w = (o_k < tl.min(b_cut, 0)) & (b_w > 0)
    target = u * _largest(tl.where(m_w, b_run, 0.0))
    choice = tl.min(tl.where(m_w & (target < b_run), o_k, K), 0)
    return tl.where(choice == K, tl.max(tl.where(m_w, o_k, 0), 0), choice)
