"""What comes before the draw on a GPU, in Triton: the feed, penalties, and what each chunk of the vocabulary holds.

Legend: R columns, each the logits of one token to come, W of each row, B rows, V vocabulary, C chunks of it, K = 20
candidates. A chunk has GROUPS groups of SIZE tokens, all of them neighbours.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

from .order import LEAST, NO_RANK, rank_of, value_of


@triton.jit
def _penalized(b_x, o_v, m_v, settings, count, ids, ahead):
    """Logits of tokens ``o_v``, any shape, less their penalties: ``count`` says how often the row has said each,
    ``ids[1:ahead]`` are its drafts before this column. Not to be contracted: the bits are those of two roundings."""
    presence = tl.load(settings + 7).to(tl.int32).to(tl.float32, bitcast=True)
    frequency = tl.load(settings + 8).to(tl.int32).to(tl.float32, bitcast=True)
    if (presence != 0) | (frequency != 0):
        b_n = tl.load(count + o_v, mask=m_v, other=0)
        for i in range(1, ahead):
            b_n += tl.where(o_v == tl.load(ids + i), 1, 0)
        b_x = tl.where(b_n > 0, b_x - (presence + frequency * b_n.to(tl.float32)), b_x)
    return b_x


@triton.jit
def logits_of(
    logits, o_v, m_v, i_r, settings, counts, lanes, ids, stride, stride_s, stride_c, W, SPOKEN: tl.constexpr,
):  # fmt: skip
    """fp32 of tokens ``o_v`` of column ``i_r``, -inf where they do not exist. SPOKEN: less their penalties by counts
    [lanes, V] and the fed tokens ids [R] int64."""
    b_x = tl.load(logits + i_r * stride + o_v, mask=m_v, other=float("-inf")).to(tl.float32)
    if SPOKEN:
        i_b = i_r // W
        count = counts + tl.load(lanes + i_b) * stride_c
        b_x = _penalized(b_x, o_v, m_v, settings + i_b * stride_s, count, ids + i_b * W, i_r - i_b * W + 1)
    return b_x


@triton.jit
def survey_kernel(
    logits, settings, chunks, groups, sums, few_groups, few, counts, lanes, ids, V, stride, stride_s, stride_c, W, C,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, KP: tl.constexpr, FEW: tl.constexpr, SPOKEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one column, by one warp: the ranks of its best token, chunks [R, C], and of each group's, groups
    [R, C, GROUPS], int32; and its sum of exponentials beside its best at the row's temperature, sums [R, C]. A NaN
    anywhere in the chunk makes its sum NaN. The first one also empties few_groups [R, 2 * KP] and few [R, 2 * FEW]."""
    begin(PDL)
    i_c = tl.program_id(0)
    i_r = tl.program_id(1).to(tl.int64)
    t = tl.load(settings + i_r // W * stride_s + 4).to(tl.int32).to(tl.float32, bitcast=True)
    o_g = i_c * GROUPS + tl.arange(0, GROUPS)
    o_v = o_g[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    m_v = o_v < V
    b_x = logits_of(logits, o_v, m_v, i_r, settings, counts, lanes, ids, stride, stride_s, stride_c, W, SPOKEN)
    b_rank = tl.max(tl.where(m_v, rank_of(b_x), NO_RANK), 1)
    best = tl.max(b_rank, 0)
    tl.store(groups + i_r * C * GROUPS + o_g, b_rank)
    tl.store(chunks + i_r * C + i_c, best)
    base = tl.where(value_of(best) == float("-inf"), 0.0, value_of(best))
    b_w = tl.where(m_v, tl.exp2((b_x - base) * (1.4426950408889634 / t)), 0.0)
    tl.store(sums + i_r * C + i_c, tl.sum(tl.sum(b_w, 1), 0))
    if i_c == 0:
        tl.store(few_groups + i_r * 2 * KP + tl.arange(0, 2 * KP), tl.full([2 * KP], -1, tl.int32))
        tl.store(few + i_r * 2 * FEW + tl.arange(0, 2 * FEW), tl.full([2 * FEW], LEAST, tl.int64))


@triton.jit
def feed_kernel(
    ids, last, lanes, counts, said, stride_c, W, D, BW: tl.constexpr, BD: tl.constexpr, DRAWN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row: DRAWN among its W tokens ids [B, W] int64 becomes what its lane drew last; what the row has said since
    the last time, said [B, D] int64 with -1 for none and DRAWN as before, goes into counts [lanes, V]."""
    begin(PDL)
    i_b = tl.program_id(0).to(tl.int64)
    o_w, o_d = tl.arange(0, BW), tl.arange(0, BD)
    lane = tl.load(lanes + i_b)
    # a draw that failed fails its request; until that is known any token will do
    drawn = tl.maximum(tl.load(last + lane), 0)
    b_id = tl.load(ids + i_b * W + o_w, mask=o_w < W, other=0)
    tl.store(ids + i_b * W + o_w, drawn + tl.zeros([BW], tl.int64), mask=(o_w < W) & (b_id == DRAWN))
    b_token = tl.load(said + i_b * D + o_d, mask=o_d < D, other=-1)
    b_token = tl.where(b_token == DRAWN, drawn, b_token)
    tl.atomic_add(counts + lane * stride_c + b_token, tl.full([BD], 1, tl.int32), mask=b_token >= 0)
