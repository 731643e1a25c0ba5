"""Experts that stay packed against the definition over the numbers their tiles hold: on a GPU, else under the
interpreter."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_kernels import moe
from ninfer_kernels.moe.layer import PackedStack
from ninfer_kernels.tiled_linear import FORMATS, TiledLinear, packing, reference

few = pytest.importorskip("ninfer_kernels.moe.few")
many = pytest.importorskip("ninfer_kernels.moe.many")
packed = pytest.importorskip("ninfer_kernels.moe.packed")

ON_GPU = torch.cuda.is_available()
ON = torch.device("cuda" if ON_GPU else "cpu")
NUMBER = torch.bfloat16 if ON_GPU else torch.float32
# norm of the difference: sums in other orders, or what is rounded in between to bf16
TOLERANCE = 1e-2 if ON_GPU else 2e-5
SMALL = (5, 2, 64, 64, 24)  # experts, of a token, width, inner width, the shared expert's


# of numbers before they are scaled
SIZE = {"q4_g64": 5, "q5_g64": 9, "q6_g64": 18, "q8_g32": 74, "fp8_row": 40, "nvfp4": 0.5}


def random_tiles(name, rows, columns, seed):
    """Any codes that mean numbers, about as large as a matrix of this width has them."""
    form, generator = FORMATS[name], torch.Generator().manual_seed(seed)
    tiles = packing.empty(form, rows, columns, torch.device("cpu"))
    tiles.codes.random_(0, 256, generator=generator)
    tiles.more.random_(0, 256, generator=generator)
    if name == "fp8_row":
        tiles.codes.bitwise_and_(0xEF)  # no NaN
    if name == "nvfp4":
        tiles.more.bitwise_and_(0x6F)  # nor in scales, which have no sign
    scales = torch.empty(*tiles.scales.shape, 2).uniform_(0.5, 1.5, generator=generator)
    size = columns**-0.5 / SIZE[name]
    tiles.scales.copy_((scales * size).half().view(torch.int32).squeeze(-1))
    tiles.factors.uniform_(0.5 * size, 1.5 * size, generator=generator)
    return on_device(tiles)


def on_device(tiles):
    moved = {name: getattr(tiles, name).to(ON) for name in ("codes", "more", "scales", "factors", "tickets")}
    return type(tiles)(format=tiles.format, rows=tiles.rows, columns=tiles.columns, **moved)


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def experts(shape, first, second, router=None):
    """Gate and up in one format, down in another; a shared expert of plain operations."""
    E, k, N, F, J = shape
    router = randn(E, N, seed=5) if router is None else router
    wide, back = ((randn(*s, seed=seed) * s[1] ** -0.5).to(ON, NUMBER) for seed, s in ((3, (2 * J, N)), (4, (N, J))))
    return moe.PackedExperts.of(
        router.to(ON), randn(1, N, seed=6).to(ON), random_tiles(first, 2 * E * F, N, 1),
        random_tiles(second, E * N, F, 2), lambda x: product(x, wide), lambda h: product(h, back), k,
    )  # fmt: skip


def product(x, matrix):
    """Rounded to x's type."""
    return (x.float() @ matrix.float().t()).to(x.dtype)


def exact(x, held, k):
    """The definition with nothing rounded in between."""
    return moe.reference.sparse(x.float(), held, k)


def tokens(T, N, seed):
    """Rows further apart than they are long."""
    return randn(T, N + 3, seed=seed).to(ON, NUMBER)[:, :N]


def error(got, wanted):
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def mixed(way, x, held, k):
    return packed.mix_few(x, held, k) if way == "few" else packed.mix_many(x, held, k)


WAYS = pytest.mark.parametrize("way", ["few", "many"])
PAIRS = [*((name, name) for name in FORMATS), ("q4_g64", "q6_g64"), ("nvfp4", "fp8_row")]


@WAYS
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_every_format_gives_what_its_numbers_give(way, first, second):
    held, x = experts(SMALL, first, second), tokens(5, 64, seed=7)
    got = mixed(way, x, held, 2)
    assert got.dtype is NUMBER
    assert error(got, exact(x, held, 2)) < TOLERANCE


def slow(*values):
    """The interpreter takes its time for every program."""
    return pytest.param(*values, marks=pytest.mark.slow)


SHAPES = [SMALL, (8, 8, 192, 128, 16), (6, 1, 64, 128, 40), (7, 3, 192, 64, 64), (3, 2, 576, 320, 8)]
LONG = SHAPES[-1]  # more than two chunks, none of them whole


@pytest.mark.parametrize(
    ("way", "T", "shape"),
    [
        *(("few", 1, shape) for shape in SHAPES),
        ("few", 5, SHAPES[0]),
        slow("few", 5, SHAPES[3]),
        slow("few", 16, SMALL),
        slow("many", 1, SHAPES[1]),
        ("many", 17, SHAPES[2]),
        slow("many", 3, LONG),
        ("many", 70, SHAPES[0]),
        ("many", 70, SHAPES[2]),
    ],
    ids=str,
)
def test_awkward_shapes_give_what_the_definition_gives(way, T, shape):
    held, x = experts(shape, "q4_g64", "q5_g64"), tokens(T, shape[2], seed=T)
    assert error(mixed(way, x, held, shape[1]), exact(x, held, shape[1])) < TOLERANCE


@WAYS
@pytest.mark.parametrize("k", range(1, 9))
def test_any_number_of_experts_a_token(way, k):
    held, x = experts((9, k, 64, 64, 16), "q6_g64", "q4_g64"), tokens(1, 64, seed=k)
    assert error(mixed(way, x, held, k), exact(x, held, k)) < TOLERANCE


def pointing(*directions):
    """Rows, each of which sends a token to the experts of that number and, less so, of the next."""
    rows = 8 * torch.eye(64)[list(directions)] + 4 * torch.eye(64)[[d + 1 for d in directions]]
    return rows.to(ON, NUMBER)


@WAYS
@pytest.mark.parametrize(
    "x",
    [pointing(*[1] * 6), pointing(0, 3, 0), pointing(*[3] * 17, 0)],
    ids=["all-to-one", "one-that-nobody-chooses", "last-and-first"],
)
def test_crowded_experts_and_those_nobody_chooses(way, x, monkeypatch):
    """Scratch holds two experts of five at a time."""
    monkeypatch.setattr(packed, "SCRATCH_BYTES", 2 * 128 * 64 * NUMBER.itemsize)
    held = experts(SMALL, "q4_g64", "q8_g32", router=torch.eye(64)[:5])
    x = x[-6:] if way == "few" else x
    assert error(mixed(way, x, held, 2), moe.reference.sparse(x, held, 2)) < TOLERANCE


def test_numbers_of_experts_nobody_chooses_are_not_made(monkeypatch):
    held = experts(SMALL, "q4_g64", "q8_g32", router=torch.eye(64)[:5])
    monkeypatch.setattr(packed, "SCRATCH_BYTES", 2 * 128 * 64 * NUMBER.itemsize)
    chosen = many.choose(pointing(0, 3, 0, 3), held, 2, 16)
    whole = moe.reference.matrices(held.gate_up).to(NUMBER)
    monkeypatch.setattr(torch, "empty", torch.zeros)
    found = [matrix.clone() for _, some in packed.decoded(held.gate_up, chosen, tokens(1, 64, 0)) for matrix in some]
    # the second piece takes the place of the first, the third of half of it
    assert [bool((a == b).all()) for a, b in zip(found, whole, strict=True)] == [True, True, False, True, True]
    assert torch.equal(found[2], found[0])


@settings(deadline=None, max_examples=6)
@given(T=st.integers(1, 40), E=st.integers(1, 7), data=st.data())
def test_every_tile_is_computed_once_with_its_own_expert(T, E, data):
    """Whatever number of experts is decoded at a time."""
    k, step = data.draw(st.integers(1, E)), data.draw(st.integers(1, E + 1))
    held = experts((E, k, 64, 64, 16), "q8_g32", "q8_g32", router=torch.eye(64)[:E])
    x = pointing(*data.draw(st.lists(st.integers(0, 6), min_size=T, max_size=T)))
    chosen = many.choose(x, held, k, 16)
    covered, first = [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "SCRATCH_BYTES", step * 64 * 64 * NUMBER.itemsize)
        for some, matrices in packed.decoded(held.down, chosen, x):
            assert len(matrices) == len(some.ends) <= max(1, step)
            mine = [(at, e) for at, e in enumerate(some.owners.tolist()) if e < len(matrices)]
            covered += [(at, first + e) for at, e in mine]
            assert some.ends.tolist() == chosen.ends.tolist()[first : first + len(matrices)]
            first += len(matrices)
    assert first == E
    assert sorted(covered) == [(at, e) for at, e in enumerate(chosen.owners.tolist()) if e < E]


def packed_throughout(name):
    """The shared expert too."""
    shared = (TiledLinear(random_tiles("q8_g32", rows, 64, seed)) for rows, seed in ((128, 8), (64, 9)))
    return replace(experts(SMALL, name, name), **dict(zip(("shared_gate_up", "shared_down"), shared, strict=True)))


@pytest.mark.parametrize("name", ["q5_g64", slow("nvfp4")])
def test_a_token_has_the_same_bits_alone_and_beside_others(name, monkeypatch):
    held, x = packed_throughout(name), tokens(16 if ON_GPU else 3, 64, seed=7)
    whole = packed.mix_few(x, held, 2)
    assert torch.equal(packed.mix_few(x, held, 2), whole)
    for t in range(len(x)):
        assert torch.equal(packed.mix_few(x[t : t + 1], held, 2)[0], whole[t])
    monkeypatch.setattr(packed, "FEW_TOKENS", 2)
    assert torch.equal(packed.mix(x, held, 2), whole), "a few at a time"
    assert not held.tickets.any(), "the next launch would not know who comes last"
    assert not held.arrived.any()


@pytest.mark.parametrize(("splits", "stages"), [(1, 1), (3, 1), slow(1, 2), slow(2, 2), slow(2, 3)], ids=str)
def test_however_chunks_are_shared_out_it_comes_to_the_same(splits, stages):
    held, x = experts((2, 1, *LONG[2:]), "q5_g64", "nvfp4"), tokens(1, 576, seed=3)
    shares, ids = few.choose(x, held, 1)
    shared = held.shared_gate_up(x)
    h, h_shared = packed.gate_up(x, held, ids, shared)
    other, _ = packed.gate_up(x, held, ids, shared, {"splits": splits, "num_stages": stages})
    assert error(other, h) < TOLERANCE
    said = held.shared_down(h_shared)
    y = packed.down(h, held, shares, ids, said, {"num_stages": stages})
    assert error(y, packed.down(h, held, shares, ids, said)) < TOLERANCE


@pytest.mark.parametrize("T", [3, slow(17), 65])
def test_a_shared_expert_that_is_packed_runs_beside_the_others(T, kernels):
    """Its products take turns with the launches that need nothing of them."""
    held, x = packed_throughout("q4_g64"), tokens(T, 64, seed=5)
    up, back = (reference.decode(one.tiles).to(NUMBER) for one in (held.shared_gate_up, held.shared_down))
    plain = replace(held, shared_gate_up=lambda x: x @ up.t(), shared_down=lambda h: h @ back.t())
    got = moe.sparse(x, held, 2)
    assert error(got, moe.reference.sparse(x, plain, 2)) < TOLERANCE
    assert torch.equal(moe.sparse(x, held, 2), got)


@pytest.fixture
def kernels(monkeypatch):
    """The routes believe in a GPU where kernels are interpreted."""
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("T", [0, 3, 65])
def test_tokens_of_any_type_and_layout_keep_it(T, dtype, kernels):
    held, x = experts(SMALL, "q4_g64", "q5_g64"), tokens(T, 64, seed=9).to(dtype)
    if NUMBER is not dtype:
        held = replace(held, shared_gate_up=as_asked(held.shared_gate_up), shared_down=as_asked(held.shared_down))
    got = moe.sparse(x, held, 2)
    assert (got.dtype, got.shape) == (dtype, (T, 64))
    if T:
        wanted = moe.reference.sparse(x.float(), held, 2)  # what chooses is not rounded
        assert error(got, wanted) < max(TOLERANCE, {torch.float16: 4e-3}.get(dtype, 0))
        assert error(moe.sparse(x.t().contiguous().t(), held, 2), got) < TOLERANCE


def as_asked(operation):
    """In the type of what it is given."""
    return lambda x: operation(x.to(NUMBER)).to(x.dtype)


def test_without_kernels_the_definition_runs(monkeypatch):
    held, x = experts(SMALL, "q4_g64", "q5_g64"), tokens(3, 64, seed=9)
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: False)
    assert torch.equal(moe.sparse(x, held, 2), moe.reference.sparse(x, held, 2))


@pytest.mark.parametrize(("E", "N", "F"), [(4, 64, 96), (4, 96, 64), (5, 64, 64), (4, 128, 64)], ids=str)
def test_experts_that_do_not_begin_with_a_tile_are_refused(E, N, F):
    """And tiles that are not those experts."""
    tiles = random_tiles("q4_g64", 2 * 4 * F, N if N != 128 else 64, 1), random_tiles("q4_g64", 4 * N, F, 2)
    with pytest.raises(ValueError, match=f"not {E} experts of a width {N}"):
        moe.PackedExperts.of(torch.zeros(E, N), torch.zeros(1, N), *tiles, lambda x: x, lambda x: x, 2)


# 35B-A3B, 122B-A10B, 397B-A17B: width, inner width, experts, of a token
PUBLISHED = [(2048, 512, 256, 8), (3072, 1024, 256, 8), (4096, 1024, 512, 10)]


@pytest.mark.parametrize(("N", "F", "E", "k"), PUBLISHED, ids=str)
def test_one_token_fills_a_gpu_at_published_sizes(N, F, E, k):
    """Five programs a multiprocessor of an H200; some experts at a time are made numbers of."""
    form = FORMATS["q4_g64"]
    tiles = (packing.empty(form, rows, width, torch.device("meta")) for rows, width in ((2 * E * F, N), (E * N, F)))
    gate_up, down = (PackedStack(each, E) for each in tiles)
    blocks = packed.gate_up_blocks(gate_up, k)
    assert k * (2 * F // 64) * blocks["splits"] >= 5 * 132
    assert blocks["splits"] <= gate_up.tiles.chunks
    assert k * N // 64 >= 2 * 120
    for stack in (gate_up, down):
        assert 8 <= packed.SCRATCH_BYTES // (2 * stack.shape[1] * stack.shape[2]) <= E
