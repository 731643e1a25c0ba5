"""The draw of many rows on a GPU, in Triton: what each chunk of the vocabulary holds, then candidates and the choice.

Legend: R columns, each the logits of one token to come, W of each row, B rows, V vocabulary, C chunks of it, K = 20
candidates. A chunk has GROUPS groups of SIZE tokens, all of them neighbours.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

from .choice import chosen, uniform
from .order import LEAST, NO_RANK, bound_of, gather, id_in, in_order, key_of, one_by_one, rank_in, rank_of, value_of


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
def _logits(
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
    o_g = i_c * GROUPS + tl.arange(0, GROUPS)
    o_v = o_g[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    m_v = o_v < V
    b_x = _logits(logits, o_v, m_v, i_r, settings, counts, lanes, ids, stride, stride_s, stride_c, W, SPOKEN)
    b_rank = tl.max(tl.where(m_v, rank_of(b_x), NO_RANK), 1)
    best = tl.max(b_rank, 0)
    tl.store(groups + i_r * C * GROUPS + o_g, b_rank)
    tl.store(chunks + i_r * C + i_c, best)
    base = tl.where(value_of(best) == float("-inf"), 0.0, value_of(best))
    t = tl.load(settings + i_r // W * stride_s + 4).to(tl.int32).to(tl.float32, bitcast=True)
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


@triton.jit
def _tokens(
    few_groups, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c, W,
    N: tl.constexpr, SIZE: tl.constexpr, SPOKEN: tl.constexpr,
):  # fmt: skip
    """Ranks and ids [N * SIZE / 4, 4] of all tokens of few_groups [N], of which -1 is none, and which there are."""
    o_q = tl.arange(0, N * SIZE // 4)
    b_group = tl.load(few_groups + o_q // (SIZE // 4))
    o_v = (b_group * SIZE + o_q % (SIZE // 4) * 4)[:, None] + tl.arange(0, 4)[None, :]
    m_v = (b_group >= 0)[:, None] & (o_v < V)
    b_x = _logits(logits, o_v, m_v, i_r, settings, counts, lanes, ids, stride, stride_s, stride_c, W, SPOKEN)
    return rank_of(b_x), o_v, m_v & (b_x == b_x)


@triton.jit
def _candidates(
    b_rank, o_g, m_g, bound, few_groups, few, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c,
    W, SIZE: tl.constexpr, FEW: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, SPOKEN: tl.constexpr,
):  # fmt: skip
    """The keys of the K best tokens, best first: [KP], of all groups, whose ranks are [N, 4], given a bound that K tokens
    reach. As a rule few groups and few tokens do, and only these are put in order."""
    gather(o_g, m_g & (b_rank >= bound), few_groups, KP)
    b_token, o_v, m_v = _tokens(
        few_groups, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c, W, KP, SIZE, SPOKEN
    )
    gather(key_of(b_token, o_v), m_v & (b_token >= bound), few, FEW)
    # volatile, so that each is loaded once and not in every layout it is needed in
    b_few = tl.load(few + tl.arange(0, FEW), volatile=True)
    if (tl.load(few_groups + KP) < 0) & (tl.load(few + FEW) == LEAST):
        b_best = in_order(b_few, KP)
    else:
        b_key = tl.where(m_g, key_of(b_rank, o_g), LEAST)
        b_best = one_by_one(tl.reshape(b_key, [b_key.numel]), K, KP)
        tl.store(few_groups + tl.arange(0, KP), tl.where(b_best != LEAST, id_in(b_best), -1))
        tl.debug_barrier()
        b_token, o_v, m_v = _tokens(
            few_groups, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c, W, KP, SIZE, SPOKEN
        )
        b_key = tl.where(m_v, key_of(b_token, o_v), LEAST)
        b_best = one_by_one(tl.reshape(b_key, [b_key.numel]), K, KP)
    return b_best


@triton.jit
def draw_kernel(
    logits, chunks, groups, sums, few_groups, few, settings, positions, out_tokens, out_ids, out_logprobs,
    counts, last, lanes, ids, V, stride, stride_s, stride_c, stride_p, shift, W, C,
    BC: tl.constexpr, BG: tl.constexpr, LISTS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    FEW: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, SPOKEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One column, W of which share a row's settings (``settings.packed``); it fills positions[R] + shift. out_tokens:
    [R] int32, -1 where the best logit is not finite or a logit is NaN; out_ids, out_logprobs: [R, K], -1 and -inf where
    there is no candidate. With SPOKEN a row's first column is what its lane has drawn last: last [lanes]."""
    begin(PDL)
    i_r = tl.program_id(0).to(tl.int64)
    o_c, o_k = tl.arange(0, BC), tl.arange(0, KP)
    m_c = o_c < C
    o_g = tl.arange(0, BG // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    m_g = o_g < C * GROUPS
    # whatever is known before the search is asked for at once
    b_rank = tl.load(groups + i_r * C * GROUPS + o_g, mask=m_g, other=NO_RANK)
    b_peak = value_of(tl.load(chunks + i_r * C + o_c, mask=m_c, other=NO_RANK))
    b_sum = tl.load(sums + i_r * C + o_c, mask=m_c, other=0.0)
    own = settings + (i_r // W) * stride_s
    t = tl.load(own + 4).to(tl.int32).to(tl.float32, bitcast=True)
    top_p = tl.load(own + 5).to(tl.int32).to(tl.float32, bitcast=True)
    min_p = tl.load(own + 6).to(tl.int32).to(tl.float32, bitcast=True)
    top_k, greedy = tl.load(own + 2), tl.load(own + 3)
    purpose = (tl.load(own + 1) & 0xFFFFFFFF).to(tl.uint64)
    position = ((tl.load(positions + i_r * stride_p) + shift) & 0xFFFFFFFF).to(tl.uint64)
    u = uniform(tl.load(own).to(tl.uint64, bitcast=True), position, purpose)
    b_list = tl.max(tl.max(tl.reshape(b_rank, [BG // 4 // LISTS, LISTS, 4]), 2), 0)
    b_best = _candidates(
        b_rank, o_g, m_g, bound_of(b_list, K), few_groups + i_r * 2 * KP, few + i_r * 2 * FEW, logits, i_r, settings,
        counts, lanes, ids, V, stride, stride_s, stride_c, W, SIZE, FEW, K, KP, SPOKEN,
    )  # fmt: skip
    m_k = (b_best != LEAST) & (o_k < K)
    b_logit = tl.where(m_k, value_of(rank_in(b_best)), float("-inf"))
    b_id = tl.where(m_k, id_in(b_best), -1)
    top = value_of(tl.max(tl.where(m_k, rank_in(b_best), NO_RANK), 0))
    base = tl.where(top == float("-inf"), 0.0, top)
    # the mass of the whole vocabulary, for log probabilities
    mass = tl.sum(tl.where(b_peak == float("-inf"), b_sum, b_sum * tl.exp((b_peak - base) / t)), 0)
    tl.store(out_logprobs + i_r * K + o_k, (b_logit - base) / t - tl.log(mass), mask=o_k < K)
    tl.store(out_ids + i_r * K + o_k, b_id, mask=o_k < K)
    b_w = tl.where(m_k & (o_k < top_k), tl.exp((b_logit - base) / t), 0.0)
    choice = tl.where(greedy == 1, 0, chosen(b_w, o_k, top_p, min_p, u, K, KP))
    token = tl.max(tl.where(o_k == choice, b_id, -1), 0)
    token = tl.where((mass == mass) & (top < float("inf")) & (top > float("-inf")), token, -1)
    tl.store(out_tokens + i_r, token)
    if SPOKEN:
        tl.store(last + tl.load(lanes + i_r // W), token.to(tl.int64), mask=i_r % W == 0)
