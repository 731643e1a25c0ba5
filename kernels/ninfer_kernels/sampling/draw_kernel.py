"""The draw of many rows on a GPU, in Triton: the search for the candidates of a column, and the choice among them.

Legend as in ``kernel``. The search is short where it can be: K lists of groups with a token each give a bound that K
tokens reach, and what reaches it is little. Where much does, as among equal logits, candidates are found one by one.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

from .choice import chosen, uniform
from .kernel import logits_of
from .order import LEAST, NO_RANK, bound_of, gather, id_in, in_order, key_of, one_by_one, rank_in, rank_of, value_of


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
    b_x = logits_of(logits, o_v, m_v, i_r, settings, counts, lanes, ids, stride, stride_s, stride_c, W, SPOKEN)
    return rank_of(b_x), o_v, m_v & (b_x == b_x)


@triton.jit
def _candidates(
    b_rank, o_g, m_g, bound, few_groups, few, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c,
    W, SIZE: tl.constexpr, FEW: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    SPOKEN: tl.constexpr,
):  # fmt: skip
    """The keys of the K best tokens, best first: [KP], of all groups, whose ranks are [N, 4], given a bound that K
    tokens reach. As a rule few groups and few tokens do, and only these are put in order."""
    gather(o_g, m_g & (b_rank >= bound), few_groups, KP)
    b_token, o_v, m_v = _tokens(
        few_groups, logits, i_r, settings, counts, lanes, ids, V, stride, stride_s, stride_c, W, KP, SIZE, SPOKEN
    )
    gather(key_of(b_token, o_v), m_v & (b_token >= bound), few, FEW)
    # one for each thread: fewer would be loaded anew in every layout they are needed in, one after another
    o_f = tl.arange(0, WIDE)
    b_few = tl.max(tl.reshape(tl.load(few + o_f, mask=o_f < FEW, other=LEAST), [WIDE // FEW, FEW]), 0)
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
def _settings(own, position, shift):
    """A column's temperature, top_p, min_p, top_k, greedy, and its number in [0, 1)."""
    t = tl.load(own + 4).to(tl.int32).to(tl.float32, bitcast=True)
    top_p = tl.load(own + 5).to(tl.int32).to(tl.float32, bitcast=True)
    min_p = tl.load(own + 6).to(tl.int32).to(tl.float32, bitcast=True)
    seed = tl.load(own).to(tl.uint64, bitcast=True)
    purpose = (tl.load(own + 1) & 0xFFFFFFFF).to(tl.uint64)
    filled = ((tl.load(position) + shift) & 0xFFFFFFFF).to(tl.uint64)
    return t, top_p, min_p, tl.load(own + 2), tl.load(own + 3), uniform(seed, filled, purpose)


@triton.jit
def draw_kernel(
    logits, chunks, groups, sums, few_groups, few, settings, positions, out_tokens, out_ids, out_logprobs,
    counts, last, lanes, ids, V, stride, stride_s, stride_c, stride_p, shift, W, C,
    BC: tl.constexpr, BG: tl.constexpr, LISTS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    FEW: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, SPOKEN: tl.constexpr, PDL: tl.constexpr,
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
    t, top_p, min_p, top_k, greedy, u = _settings(settings + i_r // W * stride_s, positions + i_r * stride_p, shift)
    b_list = tl.reshape(tl.max(tl.reshape(b_rank, [BG // LISTS, LISTS // 4, 4]), 0), [LISTS])
    b_best = _candidates(
        b_rank, o_g, m_g, bound_of(b_list, K), few_groups + i_r * 2 * KP, few + i_r * 2 * FEW, logits, i_r, settings,
        counts, lanes, ids, V, stride, stride_s, stride_c, W, SIZE, FEW, WIDE, K, KP, SPOKEN,
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
