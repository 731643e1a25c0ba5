"""The draw of many rows on a GPU, in Triton: candidates, truncation, the counter RNG and the choice.

Legend: R columns, each the logits of one token to come, W of each row, B rows, V vocabulary, C chunks of it, K = 20
candidates.

A candidate travels as one int64 that sorts as the domain does: the logit's bits made monotone, then the lower id first.
"""

import triton
import triton.language as tl

from ninfer_kernels.pdl import begin

K = 20
KP = 32  # K, padded to what tl.arange takes
LEAST = -(1 << 63)


@triton.jit
def _key(value, token):
    """fp32 logits and int32 ids -> int64 in rank order. Adding zero makes -0.0 equal 0.0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (rank.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def _value(key):
    rank = (key >> 32).to(tl.int32)
    return (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _token(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def _best(keys, K: tl.constexpr, KP: tl.constexpr, LEAST: tl.constexpr):
    """The K largest of ``keys``, in order, padded with LEAST: [KP]."""
    o_k = tl.arange(0, KP)
    found = tl.full([KP], LEAST, tl.int64)
    for i in range(K):
        top = tl.max(keys, 0)
        found = tl.where(o_k == i, top, found)
        # ids are unique, so one key goes
        keys = tl.where(keys == top, LEAST, keys)
    return found


@triton.jit
def _penalized(b_x, o_v, m_v, settings, count, ids, ahead):
    """Logits [BV] of tokens ``o_v`` less their penalties: ``count`` says how often the row has said each,
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
def candidates_kernel(
    logits, settings, keys, peaks, sums, counts, lanes, ids, V, stride, stride_s, stride_c, W, C, BV: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, LEAST: tl.constexpr, COUNTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one column, W of which share a row's settings: its K best into keys [R, C, K], and the pieces of a
    log-sum-exp at the row's temperature into peaks and sums [R, C]. A NaN anywhere in the chunk makes its sum NaN.
    COUNTED: penalties by counts [lanes, V] and the fed tokens ids [R] int64."""
    begin(PDL)
    i_c = tl.program_id(0)
    i_r = tl.program_id(1).to(tl.int64)
    i_b = i_r // W
    o_v = i_c * BV + tl.arange(0, BV)
    m_v = o_v < V
    b_x = tl.load(logits + i_r * stride + o_v, mask=m_v, other=float("-inf")).to(tl.float32)
    if COUNTED:
        count = counts + tl.load(lanes + i_b) * stride_c
        b_x = _penalized(b_x, o_v, m_v, settings + i_b * stride_s, count, ids + i_b * W, i_r - i_b * W + 1)
    b_keys = tl.where(m_v & (b_x == b_x), _key(b_x, o_v), LEAST)
    o_k = tl.arange(0, KP)
    b_best = _best(b_keys, K, KP, LEAST)
    tl.store(keys + (i_r * C + i_c) * K + o_k, b_best, mask=o_k < K)
    b_peak = tl.max(tl.where(b_x == b_x, b_x, float("-inf")), 0)
    b_base = tl.where(b_peak == float("-inf"), 0.0, b_peak)
    b_t = tl.load(settings + i_b * stride_s + 4).to(tl.int32).to(tl.float32, bitcast=True)
    b_sum = tl.sum(tl.where(m_v, tl.exp((b_x - b_base) / b_t), 0.0), 0)
    tl.store(peaks + i_r * C + i_c, b_peak)
    tl.store(sums + i_r * C + i_c, b_sum)


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
def _mix(x):
    """The finalizer of splitmix64 (``rng.mix``)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, position, purpose):
    """``rng.uniform``: fp32 in [0, 1) with 24 bits."""
    key = _mix(seed ^ (position * 0xD1B54A32D192ED03))
    key = _mix(key ^ (purpose << 21))
    return (key >> 40).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def draw_kernel(
    keys, peaks, sums, settings, positions, out_tokens, out_ids, out_logprobs, last, lanes,
    stride_s, stride_p, shift, W, C,
    BC: tl.constexpr, BCK: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, LEAST: tl.constexpr, SPOKEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One column, W of which share a row's settings (``settings.packed``); it fills positions[R] + shift. out_tokens:
    [R] int32, -1 where the best logit is not finite or a logit is NaN; out_ids, out_logprobs: [R, K], -1 and -inf where
    there is no candidate. With SPOKEN a row's first column is what its lane has drawn last: last [lanes]."""
    begin(PDL)
    i_r = tl.program_id(0).to(tl.int64)
    o_c, o_ck, o_k = tl.arange(0, BC), tl.arange(0, BCK), tl.arange(0, KP)
    b_keys = tl.load(keys + i_r * C * K + o_ck, mask=o_ck < C * K, other=LEAST)
    b_best = _best(b_keys, K, KP, LEAST)
    m_k = (b_best != LEAST) & (o_k < K)
    b_logit = tl.where(m_k, _value(b_best), float("-inf"))
    b_id = tl.where(m_k, _token(b_best), -1)
    top = tl.max(b_logit, 0)
    settings += (i_r // W) * stride_s
    t = tl.load(settings + 4).to(tl.int32).to(tl.float32, bitcast=True)
    top_p = tl.load(settings + 5).to(tl.int32).to(tl.float32, bitcast=True)
    min_p = tl.load(settings + 6).to(tl.int32).to(tl.float32, bitcast=True)
    seed = tl.load(settings).to(tl.uint64, bitcast=True)
    purpose = (tl.load(settings + 1) & 0xFFFFFFFF).to(tl.uint64)
    top_k = tl.load(settings + 2)
    greedy = tl.load(settings + 3)
    position = ((tl.load(positions + i_r * stride_p) + shift) & 0xFFFFFFFF).to(tl.uint64)
    # the mass of the whole vocabulary, for log probabilities
    m_c = o_c < C
    b_peak = tl.load(peaks + i_r * C + o_c, mask=m_c, other=float("-inf"))
    b_part = tl.load(sums + i_r * C + o_c, mask=m_c, other=0.0)
    b_base = tl.where(top == float("-inf"), 0.0, top)
    b_scaled = tl.where(b_peak == float("-inf"), b_part, b_part * tl.exp((b_peak - b_base) / t))
    mass = tl.sum(tl.where(m_c, b_scaled, 0.0), 0)
    tl.store(out_logprobs + i_r * K + o_k, (b_logit - b_base) / t - tl.log(mass), mask=o_k < K)
    tl.store(out_ids + i_r * K + o_k, b_id, mask=o_k < K)
    # running sums in rank order, as the reference has them; the weights kept are the first so many
    b_w = tl.where(m_k & (o_k < top_k), tl.exp((b_logit - b_base) / t), 0.0)
    b_run = tl.zeros([KP], tl.float32)
    total = 0.0
    for i in range(K):
        total += tl.sum(tl.where(o_k == i, b_w, 0.0), 0)
        b_run = tl.where(o_k == i, total, b_run)
    first = tl.max(b_w, 0)
    enough = tl.where(top_p < 1, top_p * total, float("inf"))
    small = (o_k > 0) & (b_w < min_p * first)
    reached = b_run >= enough
    kept = tl.minimum(tl.min(tl.where(small, o_k, K), 0), tl.min(tl.where(reached, o_k + 1, K), 0))
    m_w = (o_k < kept) & (b_w > 0)
    target = _uniform(seed, position, purpose) * tl.max(tl.where(m_w, b_run, 0.0), 0)
    choice = tl.min(tl.where(m_w & (target < b_run), o_k, K), 0)
    choice = tl.where(choice == K, tl.max(tl.where(m_w, o_k, 0), 0), choice)
    choice = tl.where(greedy == 1, 0, choice)
    token = tl.sum(tl.where(o_k == choice, b_id, 0), 0)
    sound = (mass == mass) & (top < float("inf")) & (top > float("-inf"))
    token = tl.where(sound, token, -1)
    tl.store(out_tokens + i_r, token)
    if SPOKEN:
        tl.store(last + tl.load(lanes + i_r // W), token.to(tl.int64), mask=i_r % W == 0)
