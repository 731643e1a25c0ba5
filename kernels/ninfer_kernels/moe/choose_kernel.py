"""Which experts a token goes to, in Triton.

Legend: T tokens, N width, E experts, C of them a token, S = C + 1 slots a token: its experts in the order of their ids,
then the one that all share, whose id is E.
"""

import triton
import triton.language as tl

from .few_kernel import wait_then_let_in


@triton.jit
def chosen(b_logits, E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EP: tl.constexpr):
    """[BT, EP] logits, -inf beyond E -> ids and probabilities of the C largest, [BT, CP], from the largest on; of equal
    ones the lower id comes first. Ids beyond C are EP."""
    o_e, o_c = tl.arange(0, EP)[None, :], tl.arange(0, CP)[None, :]
    b_p = tl.exp(b_logits - tl.max(b_logits, 1)[:, None])
    b_p = b_p / tl.sum(b_p, 1)[:, None]
    # as whole numbers, which have the same order; what is no number is as good as any: C experts that exist are chosen
    b_left = tl.where(o_e < E, b_p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    b_ids = tl.zeros([b_p.shape[0], CP], tl.int32) + EP
    b_most = tl.zeros([b_p.shape[0], CP], tl.int32)
    for c in tl.static_range(C):
        most = tl.max(b_left, 1)[:, None]
        e = tl.min(tl.where(b_left == most, o_e, EP), 1)[:, None]
        b_ids, b_most = tl.where(o_c == c, e, b_ids), tl.where(o_c == c, most, b_most)
        b_left = tl.where(o_e == e, -1, b_left)
    return b_ids, b_most.to(tl.float32, bitcast=True)


@triton.jit
def keep(
    b_ids, b_p, b_score, shares, ids, o_t, m_t, E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr
):  # fmt: skip
    """Slots of the tokens ``o_t``: shares and ids, [T, S]."""
    m = m_t[:, None] & (tl.arange(0, CP)[None, :] < C)
    # experts stand in the order of their ids
    o_s = tl.sum((b_ids[:, None, :] < b_ids[:, :, None]).to(tl.int32), 2) + o_t[:, None] * (C + 1)
    tl.store(shares + o_s, b_p / tl.sum(b_p, 1)[:, None], mask=m)
    tl.store(ids + o_s, b_ids, mask=m)
    o_last = o_t * (C + 1) + C
    tl.store(shares + o_last, 1.0 / (1.0 + tl.exp(-b_score)), mask=m_t)
    tl.store(ids + o_last, tl.full(o_last.shape, E, tl.int32), mask=m_t)


@triton.jit
def few_choose_kernel(
    x, scores, logits, arrived, shares, ids, stride_x, N: tl.constexpr,
    E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EP: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """BE scores of a token; the program that comes last chooses for it. x: [T, N]; scores: [E + 1, N] fp32, the shared
    expert's last; logits: [T, E + 1]; arrived: 0 of each token, and again at the end."""
    PROGRAMS: tl.constexpr = (E + BE) // BE
    i_t = tl.program_id(1)
    o_e = tl.program_id(0) * BE + tl.arange(0, BE)
    o_n = tl.arange(0, BN)
    m_e, m_n = o_e <= E, o_n < N
    b_w = tl.load(scores + o_e[:, None] * N + o_n[None, :], mask=m_e[:, None] & m_n[None, :], other=0.0)
    wait_then_let_in(PDL)
    b_x = tl.load(x + i_t * stride_x + o_n[None, :], mask=m_n[None, :], other=0.0)
    at = logits + i_t * (E + 1)
    tl.store(at + o_e, tl.sum(b_x.to(tl.float32) * b_w, 1), mask=m_e)
    tl.debug_barrier()
    if tl.atomic_add(arrived + i_t, 1, sem="acq_rel") == PROGRAMS - 1:
        tl.store(arrived + i_t, 0)
        o_a = tl.arange(0, EP)[None, :]
        o_t = i_t + tl.arange(0, 1)
        b_all = tl.load(at + o_a, mask=o_a < E, other=float("-inf"), cache_modifier=".cg")
        b_score = tl.load(logits + o_t * (E + 1) + E, cache_modifier=".cg")
        b_ids, b_p = chosen(b_all, E, C, CP, EP)
        keep(b_ids, b_p, b_score, shares, ids, o_t, o_t >= 0, E, C, CP)


@triton.jit
def many_choose_kernel(
    logits, shares, ids, stride_part, T,
    E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EP: tl.constexpr, PARTS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """BT tokens choose. logits: [T, PARTS, stride_part], which add up."""
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_e = tl.arange(0, EP)
    m_t, m_e = o_t < T, (o_e < E)[None, :]
    # after the last token comes the last token
    row = tl.minimum(o_t, T - 1).to(tl.int64) * (PARTS * stride_part)
    b_logits = tl.load(logits + row[:, None] + o_e[None, :], mask=m_e, other=float("-inf"))
    b_score = tl.load(logits + row + E)
    for part in tl.static_range(1, PARTS):
        b_logits += tl.load(logits + row[:, None] + part * stride_part + o_e[None, :], mask=m_e, other=0.0)
        b_score += tl.load(logits + row + part * stride_part + E)
    b_ids, b_p = chosen(b_logits, E, C, CP, EP)
    keep(b_ids, b_p, b_score, shares, ids, o_t, m_t, E, C, CP)


@triton.jit
def _pairs(ids, first, T, C: tl.constexpr, CP: tl.constexpr, BP: tl.constexpr):
    """The experts of BP pairs, -1 where there is none, from pair ``first`` on; a token has CP pairs, C of which are
    real."""
    o_p = first + tl.arange(0, BP)
    m = (o_p // CP < T) & (o_p % CP < C)
    return tl.load(ids + o_p // CP * (C + 1) + o_p % CP, mask=m, other=-1)


@triton.jit
def count_kernel(
    ids, counts, T, E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EP: tl.constexpr, BP: tl.constexpr
):  # fmt: skip
    """How many of BP pairs go to each expert. counts: [blocks, E]."""
    o_e = tl.arange(0, EP)
    b_id = _pairs(ids, tl.program_id(0) * BP, T, C, CP, BP)
    b_count = tl.histogram(tl.where(b_id >= 0, b_id, 0), EP, mask=b_id >= 0)
    tl.store(counts + tl.program_id(0) * E + o_e, b_count, mask=o_e < E)


@triton.jit
def carry_kernel(counts, totals, blocks, E: tl.constexpr, BB: tl.constexpr, BE: tl.constexpr):
    """BE experts: ``counts`` [blocks, E] becomes how many pairs the blocks before have; totals: [E]."""
    o_e = tl.program_id(0) * BE + tl.arange(0, BE)
    b_carried = tl.zeros([BE], tl.int32)
    for b in range(0, blocks, BB):
        o_b = b + tl.arange(0, BB)
        m = (o_b < blocks)[:, None] & (o_e < E)[None, :]
        at = counts + o_b[:, None] * E + o_e[None, :]
        b_count = tl.load(at, mask=m, other=0)
        tl.store(at, tl.cumsum(b_count, 0) - b_count + b_carried[None, :], mask=m)
        b_carried += tl.sum(b_count, 0)
    tl.store(totals + o_e, b_carried, mask=o_e < E)


@triton.jit
def place_kernel(
    ids, counts, totals, tokens, places, ends, owners, firsts, T, tiles,
    E: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EP: tl.constexpr,
    BP: tl.constexpr, BM: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """BP pairs find their places among the pairs sorted by expert: places [T, C], tokens [T * C] of each place. Also
    ends [E], and TILES of the tiles of at most BM places: owners, E where there is no tile, and their first places."""
    i_b = tl.program_id(0)
    o_e = tl.arange(0, EP)
    b_total = tl.load(totals + o_e, mask=o_e < E, other=0)
    b_end = tl.cumsum(b_total, 0)
    b_start = b_end - b_total
    o_b = tl.arange(0, BP)
    b_id = _pairs(ids, i_b * BP, T, C, CP, BP)
    b_same = (b_id[:, None] == b_id[None, :]) & (o_b[None, :] < o_b[:, None])
    m = b_id >= 0
    b_place = tl.gather(b_start, tl.where(m, b_id, 0), 0) + tl.load(counts + i_b * E + b_id, mask=m, other=0)
    b_place += tl.sum(b_same.to(tl.int32), 1)
    o_p = i_b * BP + o_b
    tl.store(places + o_p // CP * C + o_p % CP, b_place, mask=m)
    tl.store(tokens + b_place, o_p // CP, mask=m)
    if i_b == 0:
        tl.store(ends + o_e, b_end, mask=o_e < E)
    o_m = i_b * TILES + tl.arange(0, TILES)
    b_tiles = (b_total + BM - 1) // BM
    b_tile_end = tl.cumsum(b_tiles, 0)
    b_before_m = (b_tile_end[None, :] <= o_m[:, None]) & (o_e < E)[None, :]
    b_owner = tl.sum(b_before_m.to(tl.int32), 1)
    b_mine = o_e[None, :] == b_owner[:, None]
    b_first = tl.sum(tl.where(b_mine, (b_start - (b_tile_end - b_tiles) * BM)[None, :], 0), 1) + o_m * BM
    tl.store(owners + o_m, b_owner, mask=o_m < tiles)
    tl.store(firsts + o_m, b_first, mask=o_m < tiles)
