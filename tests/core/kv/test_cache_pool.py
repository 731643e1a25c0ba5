"""The paged pool: bytes, slots, and attention that reads what was stored."""

import itertools
import random

import pytest
import torch

from ninfer_core.api import InvariantError, KVCodec, KVDtype, KVGeometry, Plane, Refusal
from ninfer_core.errors import PluginError
from ninfer_core.kv.cache import KVCache, page_bytes
from ninfer_core.testing import SimpleCache, compose, make_step
from ninfer_kernels import hadamard

DTYPES = {dtype.name: dtype for dtype in compose(["kv_bf16", "kv_int8"]).kv_dtypes}
SMALL = KVGeometry(heads=(3, 2), head_dims=(64, 128))
QUERY_HEADS = (9, 4)
SCALE = 0.125
# scores sum terms of about 10 in absolute value, so fp32 moves a weight by about 2e-6 of itself, and values reach 4
TOLERANCE = 1e-5


class RotatedRows:
    """Values kept in rotated coordinates, as some storages keep them."""

    def encode(self, rows):
        return (hadamard.rotate(rows).bfloat16(),)

    def decode(self, planes):
        return planes[0].float()


DTYPES["rotated"] = KVDtype(
    name="rotated",
    summary="keys and values rotated, in bf16",
    key_planes=lambda head_dim: (Plane(dtype="bfloat16", width=head_dim),),
    open=lambda head_dim: KVCodec(keys=RotatedRows(), values=RotatedRows(), rotates_keys=True, rotates_values=True),
)


def rows(step, layer, generator, kind="kv"):
    heads = SMALL.heads[layer] if kind == "kv" else QUERY_HEADS[layer]
    return torch.randn(len(step.token_ids), heads, SMALL.head_dims[layer], generator=generator)


def feed(cache, step, seed):
    """Store random keys and values of every layer; gives them."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for layer in range(2):
        k, v = rows(step, layer, generator), rows(step, layer, generator)
        cache.store(layer, k, v, step)
        out.append((k, v))
    return out


def step_of(widths, frontiers, pages):
    return make_step([[0] * width for width in widths], frontiers=frontiers, pages=pages)


@pytest.mark.parametrize(
    ("name", "layers", "heads", "head_dim", "token_bytes"),
    [
        ("bf16", 16, 4, 256, 65_536),
        ("int8", 16, 4, 256, 33_792),
        ("bf16", 10, 2, 256, 20_480),
        ("int8", 10, 2, 256, 10_560),
        ("int8", 1, 1, 128, 264),
        ("fp32", 1, 1, 96, 768),
        ("bf16", 30, 3, 64, 23_040),
    ],
)
def test_a_page_has_the_published_bytes(name, layers, heads, head_dim, token_bytes):
    geometry = KVGeometry(heads=(heads,) * layers, head_dims=(head_dim,) * layers)
    assert page_bytes(geometry, DTYPES[name]) == 64 * token_bytes


@pytest.mark.parametrize("name", DTYPES)
def test_the_planes_take_the_bytes_announced(name):
    cache = KVCache(SMALL, DTYPES[name], 5, "cpu", False)
    planes = [plane for pool in cache.layers for side in (pool.keys, pool.values) for plane in side.planes]
    assert cache.bytes == 5 * page_bytes(SMALL, DTYPES[name]) == sum(plane.nbytes for plane in planes)
    assert all(plane.shape[0] == 5 and plane.shape[2] == 64 and not plane.any() for plane in planes)


def test_planes_are_page_major_and_hold_a_row_where_its_slot_says():
    cache = KVCache(SMALL, DTYPES["bf16"], 4, "cpu", False)
    step = step_of([3], [63], [[2, 1]])
    ((k, v), _) = feed(cache, step, 1)
    for side, given in ((cache.layers[0].keys, k), (cache.layers[0].values, v)):
        plane = side.planes[0]
        assert torch.equal(plane[2, :, 63], given[0].bfloat16())
        assert torch.equal(plane[1, :, 0], given[1].bfloat16())
        assert torch.equal(plane[1, :, 1], given[2].bfloat16())
        plane[2, :, 63] = plane[1, :, :2] = 0
        assert not plane.any()


@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
@pytest.mark.parametrize("name", DTYPES)
def test_attention_over_a_conversation_equals_the_plainest_cache(name, reference):
    cache, plain = (
        KVCache(SMALL, DTYPES[name], 16, "cpu", reference),
        SimpleCache(SMALL, 16, dtype=DTYPES[name]),
    )
    pages = [[5, 2, 9], [0, 11, 3], [7, 1, 8]]
    units = [
        step_of([70], [0], pages[:1]),
        step_of([3], [0], pages[1:2]),
        step_of([17], [70], pages[:1]),
        step_of([64], [0], pages[2:]),
        # a decode round, and a verify round of rows of different width
        step_of([1, 1, 1], [87, 3, 64], pages),
        step_of([4, 1, 2], [88, 4, 65], pages),
        # rejected columns are written again
        step_of([2, 1], [89, 5], pages[:2]),
    ]
    for seed, step in enumerate(units):
        generator = torch.Generator().manual_seed(100 + seed)
        for layer in range(2):
            k, v, q = rows(step, layer, generator), rows(step, layer, generator), rows(step, layer, generator, "q")
            for each in (cache, plain):
                each.store(layer, k, v, step)
            out = cache.attend(layer, q, step, SCALE)
            expected = plain.attend(layer, q, step, SCALE)
            torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", DTYPES)
def test_gather_gives_stored_rows_in_the_model_s_coordinates(name):
    cache, plain = KVCache(SMALL, DTYPES[name], 8, "cpu", False), SimpleCache(SMALL, 8, dtype=DTYPES[name])
    step = step_of([100, 5], [0, 0], [[6, 3], [4]])
    feed(cache, step, 2)
    feed(plain, step, 2)
    for row, start, end in ((0, 0, 100), (0, 60, 70), (1, 4, 5), (1, 2, 2)):
        for got, expected in zip(
            cache.gather(1, step, row, start, end), plain.gather(1, step, row, start, end), strict=True
        ):
            assert got.shape == (end - start, 2, 128)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", DTYPES)
def test_chunks_and_decode_rounds_leave_the_same_bytes_as_one_chunk(name):
    whole, pieces = (KVCache(SMALL, DTYPES[name], 4, "cpu", False) for _ in range(2))
    pages, generator = [[3, 0, 2]], torch.Generator().manual_seed(5)
    given = [
        tuple(torch.randn(150, SMALL.heads[layer], SMALL.head_dims[layer], generator=generator) for _ in range(2))
        for layer in range(2)
    ]
    for cache, cuts in ((whole, [0, 150]), (pieces, [0, 1, 63, 65, 128, 149, 150])):
        for start, end in itertools.pairwise(cuts):
            step = step_of([end - start], [start], pages)
            for layer, (k, v) in enumerate(given):
                cache.store(layer, k[start:end], v[start:end], step)
    for one, other in zip(whole.layers, pieces.layers, strict=True):
        for a, b in zip(
            (*one.keys.planes, *one.values.planes), (*other.keys.planes, *other.values.planes), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
@pytest.mark.parametrize("name", DTYPES)
def test_the_choice_of_pages_never_shows(name, reference):
    results = []
    for pages in ([0, 1, 2], [7, 4, 5]):
        cache = KVCache(SMALL, DTYPES[name], 8, "cpu", reference)
        feed(cache, step_of([130], [0], [pages]), 3)
        step = step_of([1], [130], [pages])
        feed(cache, step, 4)
        generator = torch.Generator().manual_seed(9)
        results.append([cache.attend(layer, rows(step, layer, generator, "q"), step, SCALE) for layer in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_any_walk_of_sequences_reads_back_what_the_plainest_cache_reads(seed):
    rng, name = random.Random(seed), ["bf16", "int8"][seed % 2]
    cache, plain = KVCache(SMALL, DTYPES[name], 24, "cpu", False), SimpleCache(SMALL, 24, dtype=DTYPES[name])
    free, lanes = list(range(24)), {}
    for unit in range(25):
        if lanes and rng.random() < 0.15:
            # the pages of one that ended, stale bytes and all, go to the next
            free += lanes.pop(rng.choice(list(lanes)))["pages"]
        if len(lanes) < 4 and len(free) >= 5:
            lanes[unit] = {"pages": [free.pop(rng.randrange(len(free))) for _ in range(5)], "frontier": 0}
        if not lanes:
            continue
        chosen = rng.sample(list(lanes), rng.randint(1, len(lanes)))
        widths = [rng.choice([1, 1, 2, 5]) if lanes[c]["frontier"] else rng.randint(1, 130) for c in chosen]
        step = step_of(widths, [lanes[c]["frontier"] for c in chosen], [lanes[c]["pages"] for c in chosen])
        generator = torch.Generator().manual_seed(seed * 1000 + unit)
        for layer in range(2):
            k, v, q = rows(step, layer, generator), rows(step, layer, generator), rows(step, layer, generator, "q")
            for each in (cache, plain):
                each.store(layer, k, v, step)
            torch.testing.assert_close(
                cache.attend(layer, q, step, SCALE), plain.attend(layer, q, step, SCALE), rtol=0, atol=TOLERANCE
            )
        for c, width in zip(chosen, widths, strict=True):
            # a verify round may keep less than it fed
            lanes[c]["frontier"] += rng.randint(1, width)
            if lanes[c]["frontier"] > 300:
                free += lanes.pop(c)["pages"]


def test_activations_keep_their_dtype_and_are_stored_alike():
    cache = KVCache(SMALL, DTYPES["bf16"], 4, "cpu", False)
    step, generator = step_of([5], [0], [[1]]), torch.Generator().manual_seed(1)
    k, v, q = (torch.randn(5, heads, 64, generator=generator).bfloat16() for heads in (3, 3, 9))
    cache.store(0, k, v, step)
    out = cache.attend(0, q, step, SCALE)
    assert out.dtype == torch.bfloat16
    cache.store(0, k.float(), v.float(), step)
    assert torch.equal(cache.attend(0, q.float(), step, SCALE).bfloat16(), out)


def test_it_may_be_made_and_used_in_and_out_of_inference_mode():
    with torch.inference_mode():
        made_inside = KVCache(SMALL, DTYPES["int8"], 4, "cpu", False)
    made_outside = KVCache(SMALL, DTYPES["int8"], 4, "cpu", False)
    step = step_of([3], [0], [[1]])
    for cache in (made_inside, made_outside):
        outside = feed(cache, step, 1)
        with torch.inference_mode():
            inside = feed(cache, step, 1)
            cache.attend(0, torch.ones(3, 9, 64), step, SCALE)
        assert torch.equal(outside[0][0], inside[0][0])


def test_rows_of_another_shape_are_refused():
    cache, step = KVCache(SMALL, DTYPES["bf16"], 4, "cpu", False), step_of([2], [0], [[1]])
    with pytest.raises(InvariantError, match=r"layer 1 stores \[T, 2, 128\], not \(2, 3, 128\)"):
        cache.store(1, torch.ones(2, 3, 128), torch.ones(2, 3, 128), step)


def test_a_head_dimension_the_storage_cannot_hold_is_refused_before_memory_is_taken():
    geometry = KVGeometry(heads=(4,), head_dims=(96,))
    for use in (page_bytes, lambda geometry, dtype: KVCache(geometry, dtype, 1 << 20, "cpu", False)):
        with pytest.raises(Refusal, match=r"--kv-dtype int8 .* is 96"):
            use(geometry, DTYPES["int8"])


def test_a_plane_of_an_unknown_type_names_the_storage():
    odd = KVDtype(
        name="odd", summary="", key_planes=lambda head_dim: (Plane(dtype="int7x", width=head_dim),), open=lambda d: None
    )
    with pytest.raises(PluginError, match=r"--kv-dtype odd.*'int7x'"):
        page_bytes(SMALL, odd)
