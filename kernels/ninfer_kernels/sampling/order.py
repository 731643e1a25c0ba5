"""The order of the domain as Triton sees it: higher logits first, then lower ids; and searches in that order.

A logit's rank is an int32 that sorts as the logit does. A key is one int64 that sorts as the domain does: a rank, then
the lower id first. The id may be a token's, or the place of a group of neighbours, which ranks as its best token does:
the K best tokens lie in the K best groups, ties included, since a group at a lower place holds lower ids.
"""

import triton
import triton.language as tl

K = 20
KP = 32  # K, padded to what tl.arange takes
LEAST = tl.constexpr(-(1 << 63))  # below every key
NO_RANK = tl.constexpr(-(1 << 31))  # below every number's rank: of a NaN, or of nothing


@triton.jit
def rank_of(value):
    """fp32 -> int32. Adding zero makes -0.0 equal 0.0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(value == value, bits ^ ((bits >> 31) & 0x7FFFFFFF), NO_RANK)


@triton.jit
def value_of(rank):
    """The logit of a rank, -inf where there is none."""
    value = (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(rank == NO_RANK, float("-inf"), value)


@triton.jit
def key_of(rank, at):
    """int32 ranks and ids -> int64."""
    return (rank.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64)


@triton.jit
def rank_in(key):
    return (key >> 32).to(tl.int32)


@triton.jit
def id_in(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def bound_of(ranks, K: tl.constexpr):
    """The K-th largest of ranks [N], by counting for each how many are as large; NO_RANK where N < K."""
    b_n = tl.sum((ranks[:, None] >= ranks[None, :]).to(tl.int32), 0)
    return tl.max(tl.where(b_n >= K, ranks, NO_RANK), 0)


@triton.jit
def gather(values, wanted, room, ROOM: tl.constexpr):
    """Put those of values [N, 4] that are wanted into room [ROOM + 1], in any order; its last place is for all that
    find none. Four values lie in one thread, so that threads count theirs before they count together."""
    b_to = tl.cumsum(wanted.to(tl.int32), 1)
    b_n = tl.sum(wanted.to(tl.int32), 1)
    b_to += (tl.cumsum(b_n, 0) - b_n - 1)[:, None]
    tl.store(room + tl.minimum(b_to, ROOM), values, mask=wanted)
    # every thread has stored before any loads
    tl.debug_barrier()


@triton.jit
def in_order(keys, KP: tl.constexpr):
    """The KP best of a few keys [N], best first, LEAST where there are fewer: each key counts those before it."""
    b_at = tl.sum((keys[:, None] > keys[None, :]).to(tl.int32), 0)
    m = (b_at[:, None] == tl.arange(0, KP)[None, :]) & (keys != LEAST)[:, None]
    return tl.max(tl.where(m, keys[:, None], LEAST), 0)


@triton.jit
def one_by_one(keys, K: tl.constexpr, KP: tl.constexpr):
    """The K best of any number of keys, best first, LEAST where there are fewer and past K: [KP]."""
    o_k = tl.arange(0, KP)
    found = tl.full([KP], LEAST, tl.int64)
    for i in range(K):
        top = tl.max(keys, 0)
        found = tl.where(o_k == i, top, found)
        # ids are unique, so one key goes
        keys = tl.where(keys == top, LEAST, keys)
    return found
