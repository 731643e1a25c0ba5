"""The Triton routes of the mixture against the definition: on a GPU, else under the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_kernels import moe
from ninfer_kernels.moe.layer import split
from ninfer_kernels.tuning import Facts, device_facts
from ninfer_kernels.tuning.search import close

few = pytest.importorskip("ninfer_kernels.moe.few")
many = pytest.importorskip("ninfer_kernels.moe.many")
few_blocks = pytest.importorskip("ninfer_kernels.moe.few_blocks")
many_blocks = pytest.importorskip("ninfer_kernels.moe.many_blocks")

ON = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# experts, of a token, width, inner width, the shared expert's
SHAPES = [(6, 2, 33, 20, 24), (8, 3, 64, 16, 16), (1, 1, 16, 5, 40), (20, 8, 32, 24, 8)]
# products and sums in other orders; half precision: what is rounded in between may round the other way
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# a product of bf16 operands is wrong under the interpreter
KINDS = list(TOLERANCE)[: 3 if torch.cuda.is_available() else 2]
# tokens: the interpreter takes its time for every program
BESIDE, MANY = (16, 300) if torch.cuda.is_available() else (4, 37)


def randn(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def experts(shape, dtype, on=ON, router=None):
    E, _, N, I, J = shape  # noqa: E741
    widths = {1: (E, 2 * I, N), 2: (E, N, I), 3: (2 * J, N), 4: (N, J)}
    matrices = [randn(*s, seed=seed, dtype=dtype) * s[-1] ** -0.5 for seed, s in widths.items()]
    router = randn(E, N, seed=5) if router is None else router
    return moe.Experts.of(*(w.to(on) for w in (router, randn(1, N, seed=6), *matrices)))


def tokens(T, N, seed, dtype=torch.float32):
    """Rows further apart than they are long."""
    return randn(T, N + 3, seed=seed, dtype=dtype)[:, :N]


def slots(way, x, held, k):
    """Shares, and ids recovered from whatever the route keeps, of each token's experts."""
    if way == "few":
        shares, ids = few.choose(x, held, k)
        assert (ids[:, k] == held.gate_up.shape[0]).all()
        return shares.cpu(), ids[:, :k].cpu()
    made = many.choose(x, held, k, 16)
    owner = torch.searchsorted(made.ends.cpu().long(), made.places.cpu().long(), right=True)
    return made.shares.cpu(), owner


WAYS = pytest.mark.parametrize("way", ["few", "many"])


@WAYS
@pytest.mark.parametrize(("T", "E", "k"), [(1, 256, 8), (5, 6, 2), (37, 4, 4), (2, 100, 1), (3, 12, 5)])
def test_choices_equal_the_definition_in_the_order_of_ids(way, T, E, k):
    held = experts((E, k, 32, 8, 8), torch.float32)
    x = tokens(T, 32, seed=E)
    scores = x @ held.scores.cpu().t()
    expected, ids = moe.reference.route(scores[:, :E], k)
    ids, order = ids.sort(-1)
    shares, got = slots(way, x.to(ON), held, k)
    assert torch.equal(got.long(), ids)
    torch.testing.assert_close(shares[:, :k], expected.gather(1, order), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(shares[:, k], torch.sigmoid(scores[:, E]), rtol=1e-4, atol=1e-6)


@WAYS
def test_of_equal_experts_the_lower_ids_are_chosen(way):
    router = torch.zeros(20, 32)
    router[[3, 7, 9]] = 1.0
    held = experts(SHAPES[3], torch.float32, router=router)
    x = torch.stack((torch.ones(32), -torch.ones(32), torch.zeros(32))).to(ON)
    ids = slots(way, x, held, 8)[1].tolist()
    assert ids == [[0, 1, 2, 3, 4, 5, 7, 9], [0, 1, 2, 4, 5, 6, 8, 10], list(range(8))]


@WAYS
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e38], ids=str)
def test_whatever_the_scores_are_every_slot_is_an_expert_of_its_own(way, value):
    """A column without a token has any numbers; what it reads has to exist."""
    x = tokens(4, 33, seed=3)
    x[0], x[1, 2], x[2, :9] = value, value, -value
    ids = slots(way, x.to(ON), experts(SHAPES[0], torch.float32), 2)[1]
    assert ((ids >= 0) & (ids < 6)).all()
    assert (ids[:, 0] < ids[:, 1]).all()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize(
    ("way", "T", "shape"),
    [
        ("few", 1, SHAPES[1]),
        ("few", 1, SHAPES[3]),
        ("few", 5, SHAPES[0]),
        ("few", 2, SHAPES[2]),
        ("many", 1, SHAPES[1]),
        ("many", MANY, SHAPES[0]),
        ("many", 7, SHAPES[2]),
        ("many", 70, SHAPES[2]),  # more than a tile of one expert
        ("many", 33, SHAPES[3]),
    ],
    ids=str,
)
def test_the_mixture_equals_its_definition(shape, T, way, dtype):
    k, N = shape[1:3]
    x = tokens(T, N, seed=4, dtype=dtype)
    expected = moe.reference.sparse(x, experts(shape, dtype, torch.device("cpu")), k)
    got = {"few": few, "many": many}[way].mix(x.to(ON), experts(shape, dtype), k)
    assert got.dtype is dtype
    torch.testing.assert_close(got.cpu(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_token_has_the_same_bits_alone_and_beside_others(dtype):
    held, x = experts(SHAPES[1], dtype), tokens(BESIDE, 64, seed=7, dtype=dtype).to(ON)
    whole = few.mix(x, held, 3)
    for t in (0, BESIDE // 2, BESIDE - 1):
        assert torch.equal(few.mix(x[t : t + 1], held, 3)[0], whole[t])


def test_launches_leave_the_counters_as_they_were_and_repeat():
    held, x = experts(SHAPES[0], torch.float32), tokens(3, 33, seed=8).to(ON)
    first = few.mix(x, held, 2)
    assert not held.arrived.any()
    assert torch.equal(few.mix(x, held, 2), first)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_blocks_narrower_than_the_matrices_come_to_the_same(dtype):
    k, x, held = 2, tokens(2, 33, seed=12, dtype=dtype).to(ON), experts(SHAPES[0], dtype)
    shares, ids = few.choose(x, held, k, {"BE": 2, "num_warps": 4})
    h = few.gate_up(x, held, ids, {"BI": 16, "BN": 16, "num_warps": 4, "num_stages": 2})
    got = few.down(h, held, shares, ids, {"BN": 16, "BF": 16, "num_warps": 4})
    torch.testing.assert_close(got, few.mix(x, held, k), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("desc", [0, 1], ids=["pointers", "descriptors"])
def test_what_is_left_of_an_expert_may_take_a_smaller_tile(desc):
    """Three experts' tiles: full ones, one of which a part remains, one that the smaller tile holds."""
    shape = (3, 1, 32, 16, 16)
    x = torch.eye(32)[[0] * 32 + [1] * 27 + [2] * 9].to(ON).half()
    held = experts(shape, torch.float16, router=3 * torch.eye(32)[:3])
    made = many.choose(x, held, 1, 32)
    assert made.ends.tolist() == [32, 59, 68]
    inner = few.gate_up(
        x, held, torch.tensor([[e, 3] for e in [0] * 32 + [1] * 27 + [2] * 9], dtype=torch.int32).to(ON)
    )
    blocks = {"TAIL": 16, "BI": 16, "BN": 16, "DESC": desc, "num_warps": 4, "num_stages": 2}
    h = many.gate_up(x, held, made, 32, blocks)
    torch.testing.assert_close(h, inner[::2], rtol=4e-3, atol=4e-3)
    said = many.down(h, held, made, 32, blocks)
    wanted = torch.cat([rows @ w.t() for rows, w in zip(h.float().split((32, 27, 9)), held.down.float(), strict=True)])
    torch.testing.assert_close(said.float(), wanted, rtol=4e-3, atol=4e-3)


@settings(deadline=None, max_examples=12)
@given(T=st.integers(1, 60), E=st.integers(1, 9), data=st.data())
def test_every_pair_has_one_place_and_every_place_one_tile_of_its_expert(T, E, data):
    k, tile = data.draw(st.integers(1, E)), data.draw(st.sampled_from([4, 16]))
    # few directions, so that some experts are crowded and others empty
    x = torch.eye(4)[data.draw(st.lists(st.integers(0, 3), min_size=T, max_size=T))].to(ON)
    held = experts((E, k, 4, 2, 2), torch.float32)
    made = many.choose(x, held, k, tile)
    expected = moe.reference.route(x.cpu() @ held.scores[:-1].cpu().t(), k)[1].sort(-1)[0]
    places, order, ends = (t.cpu().long() for t in (made.places, made.tokens, made.ends))
    assert sorted(places.flatten().tolist()) == list(range(T * k))
    assert torch.equal(order[places], torch.arange(T)[:, None].expand(T, k))
    assert torch.equal(torch.searchsorted(ends, places, right=True), expected)
    starts = [0, *ends[:-1].tolist()]
    for start, end in zip(starts, ends.tolist(), strict=True):
        assert (order[start:end].diff() > 0).all()
    covered = []
    for e, first in zip(made.owners.tolist(), made.firsts.tolist(), strict=True):
        if e < E:
            assert starts[e] <= first < ends[e]
            covered += range(first, min(first + tile, int(ends[e])))
    assert covered == list(range(T * k))


@pytest.mark.parametrize("T", [0, 3, 17])
def test_routes_mix_with_and_without_kernels(T, monkeypatch):
    cpu = torch.device("cpu")
    x, held = tokens(T, 33, seed=9), experts(SHAPES[0], torch.float32, cpu)
    expected = moe.reference.sparse(x, held, 2)
    torch.testing.assert_close(moe.sparse(x, held, 2), expected, rtol=2e-5, atol=2e-5)
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    got = moe.sparse(x.to(ON), experts(SHAPES[0], torch.float32), 2)
    torch.testing.assert_close(got.cpu(), expected, rtol=2e-5, atol=2e-5)


def test_experts_of_another_type_than_the_tokens_compute_in_their_own():
    held, x = experts(SHAPES[0], torch.float32, torch.device("cpu")), tokens(3, 33, seed=10, dtype=torch.float16)
    got = moe.sparse(x, held, 2)
    assert got.dtype is torch.float16
    torch.testing.assert_close(got, moe.reference.sparse(x.float(), held, 2).half())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_scores_are_the_exact_sum_of_their_parts(dtype):
    wide, narrow = randn(7, 24, seed=11), randn(7, 24, seed=11).bfloat16().float()
    for scores, most in ((wide, 1 if dtype is torch.float32 else 3), (narrow, 2 if dtype is torch.float16 else 1)):
        stack, parts = split(scores, dtype)
        assert parts <= most
        assert stack.dtype is dtype
        whole = stack.double().unflatten(0, (parts, -1)).sum(0)
        assert whole.shape[0] == 8
        assert not whole[7:].any()
        # fp16 ends at 2^-24
        torch.testing.assert_close(whole[:7], scores.double(), rtol=0, atol=2**-24 if dtype is torch.float16 else 0)


SMALL = {"N": 64, "F": 24, "F_SHARED": 16, "C": 2, "E": 5, "BM": 64, "bytes": 4}
# 35B-A3B, 122B-A10B, 397B-A17B: width, inner width, experts, of a token
PUBLISHED = [(2048, 512, 256, 8), (3072, 1024, 256, 8), (4096, 1024, 512, 10)]
KEYS = {
    few_blocks.CHOOSE: ("N", "E", "C"),
    few_blocks.GATE_UP: ("N", "F", "F_SHARED", "C"),
    few_blocks.DOWN: ("N", "F", "F_SHARED", "C"),
    many_blocks.GATE_UP: ("N", "F", "BM", "bytes"),
    many_blocks.DOWN: ("N", "F", "BM", "bytes"),
}
TUNABLES = pytest.mark.parametrize("tunable", KEYS, ids=[tunable.name for tunable in KEYS])


@TUNABLES
def test_what_a_search_tries_is_what_the_default_gives(tunable, monkeypatch):
    monkeypatch.setattr(many_blocks, "SEARCHED_TOKENS", 24)
    monkeypatch.setattr(many_blocks, "SEARCHED_EXPERTS", 3)
    monkeypatch.setattr(many_blocks, "SEARCHED_CHOSEN", 2)
    shape, facts = {key: SMALL[key] for key in KEYS[tunable]}, device_facts(ON)
    made = tunable.inputs(shape, ON, torch.Generator(ON).manual_seed(0))
    wanted = tunable.run(made, tunable.default(shape, facts)).float()
    for blocks in list(tunable.candidates(shape, facts))[:: 1 if ON.type == "cuda" else 3]:
        assert close(tunable.run(made, blocks).float(), wanted, tunable.tolerance), dict(blocks)


@TUNABLES
@pytest.mark.parametrize("sizes", PUBLISHED, ids=str)
@pytest.mark.parametrize(("capability", "shared_kib"), [((9, 0), 227), ((8, 6), 99)], ids=["hopper", "ampere"])
def test_blocks_fit_a_program_at_published_sizes(tunable, sizes, capability, shared_kib):
    """Registers of weights a thread, or shared memory of the loads in flight; sizes a tile can have."""
    N, F, E, C = sizes
    facts = Facts(name="one", capability=capability, multiprocessors=80, shared_bytes=shared_kib << 10, cache_bytes=1)
    BM = 128 if capability[0] >= 9 else 64
    whole = {"N": N, "F": F, "F_SHARED": F, "C": C, "E": E, "BM": BM, "bytes": 2}
    shape = {key: whole[key] for key in KEYS[tunable]}
    default = tunable.default(shape, facts)
    for blocks in (default, *tunable.candidates(shape, facts)):
        assert list(blocks) == list(default)
        sides = {key: size for key, size in blocks.items() if key in ("BE", "BI", "BN", "BF", "TAIL", "num_warps")}
        assert all(size & (size - 1) == 0 for size in sides.values())
        if "num_stages" in blocks:
            tile = {
                few_blocks.GATE_UP: (2 * blocks["BI"] + 1) * blocks["BN"],
                many_blocks.GATE_UP: (BM + 2 * blocks["BI"]) * blocks["BN"],
                many_blocks.DOWN: (BM + blocks["BN"]) * blocks["BI"],
            }
            assert 1 < blocks["num_stages"] <= facts.shared_bytes // (2 * tile[tunable])
        if tunable not in (many_blocks.GATE_UP, many_blocks.DOWN):
            held = {
                few_blocks.CHOOSE: blocks.get("BE", 0) * N,
                few_blocks.GATE_UP: 2 * blocks.get("BI", 0) * blocks.get("BN", 0),
                few_blocks.DOWN: (1 << (C - 1).bit_length()) * blocks.get("BN", 0) * blocks.get("BF", 0),
            }
            assert held[tunable] <= 128 * 32 * blocks["num_warps"]
