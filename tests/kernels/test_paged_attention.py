"""Every route of paged attention against its reference, over awkward lengths."""

import pytest
import torch

from ninfer_kernels import paged_attention
from ninfer_kernels.paged_attention import Rows, Stored, cpu, reference, routes

PAGES, G, R, D = 40, 3, 3, 64
SCALE = 0.125
# scores sum terms of about 10 in absolute value, so fp32 moves a weight by about 2e-6 of itself, and values reach 4
TOLERANCE = 1e-5

# (frontiers, tokens of each row in this step)
STEPS = [
    ([0], [1]),
    ([62, 63, 64, 65], [1, 1, 1, 1]),
    ([499, 0, 17], [1, 1, 1]),
    ([128], [4]),
    ([125, 3, 60], [4, 2, 7]),
    ([0], [5]),
    ([63], [64]),
    ([0], [200]),
    ([130], [70]),
    ([10, 200], [1, 80]),
]
IDS = [f"F{'-'.join(map(str, f))}-W{'-'.join(map(str, w))}" for f, w in STEPS]


def stored(dtype, seed):
    plane = torch.randn(PAGES, G, 64, D, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return Stored((plane,), lambda planes: planes[0].float(), is_cast=True)


def scaled_codes(seed):
    """A storage of two planes, as quantized ones have."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (PAGES, G, 64, D), generator=generator, dtype=torch.int8)
    scales = torch.rand(PAGES, G, 64, 1, generator=generator).half() / 50
    return Stored((codes, scales), lambda planes: planes[0].float() * planes[1].float())


STORAGES = {
    "bf16": lambda seed: stored(torch.bfloat16, seed),
    "fp32": lambda seed: stored(torch.float32, seed),
    "codes": scaled_codes,
}


def rows_of(frontiers, widths):
    starts = [0]
    for width in widths:
        starts.append(starts[-1] + width)
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(sum(frontiers) + 1))
    return Rows(tuple(starts), tuple(frontiers), order[: len(frontiers) * 8].view(len(frontiers), 8).contiguous())


def queries(count, seed=3):
    return torch.randn(count, G * R, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("frontiers", "widths"), STEPS, ids=IDS)
@pytest.mark.parametrize("storage", STORAGES)
def test_every_route_equals_the_reference(storage, frontiers, widths):
    keys, values, rows = STORAGES[storage](1), STORAGES[storage](2), rows_of(frontiers, widths)
    q = queries(sum(widths))
    expected = reference.attend(q, keys, values, rows, SCALE)
    for route in (paged_attention.attend, cpu.attend):
        torch.testing.assert_close(route(q, keys, values, rows, SCALE), expected, rtol=0, atol=TOLERANCE)


def test_the_reference_equals_attention_in_fp64():
    keys, values = STORAGES["bf16"](1), STORAGES["bf16"](2)
    for length in (1, 63, 64, 65, 129):
        rows, q = rows_of([length - 1], [1]), queries(1)
        pages = rows.page_table[0]
        k, v = (
            side.planes[0][pages].permute(1, 0, 2, 3).reshape(G, -1, D)[:, :length].double() for side in (keys, values)
        )
        for head in range(G * R):
            weights = torch.softmax(k[head // R] @ q[0, head].double() * SCALE, dim=0)
            expected = (weights @ v[head // R]).float()
            result = reference.attend(q, keys, values, rows, SCALE)[0, head]
            torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("route", [reference.attend, cpu.attend, paged_attention.attend], ids=["ref", "cpu", "fastest"])
@pytest.mark.parametrize("storage", ["bf16", "fp32"])
def test_what_lies_outside_a_row_is_never_seen(route, storage):
    keys, values, rows = STORAGES[storage](1), STORAGES[storage](2), rows_of([62, 130], [1, 4])
    q = queries(5)
    clean = route(q, keys, values, rows, SCALE)
    seen = torch.zeros(PAGES, 64, dtype=torch.bool)
    for row in range(2):
        for position in range(rows.length(row)):
            seen[rows.page_table[row, position // 64], position % 64] = True
    for side in (keys, values):
        side.planes[0].masked_fill_(~seen[:, None, :, None], float("nan"))
    assert torch.equal(route(q, keys, values, rows, SCALE), clean)


@pytest.mark.parametrize("storage", ["bf16", "fp32"])
def test_a_later_token_never_changes_an_earlier_one(storage):
    keys, values, rows, q = STORAGES[storage](1), STORAGES[storage](2), rows_of([126], [4]), queries(4)
    before = paged_attention.attend(q, keys, values, rows, SCALE)
    for side in (keys, values):
        side.planes[0][rows.page_table[0, 2], :, 0] = 100.0  # position 128, the third token
    after = paged_attention.attend(q, keys, values, rows, SCALE)
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2:], after[2:])


def test_a_nan_in_the_history_or_the_query_shows():
    keys, values, rows = STORAGES["bf16"](1), STORAGES["bf16"](2), rows_of([100, 100], [1, 1])
    q = queries(2)
    q[0, 4, 7] = float("nan")
    keys.planes[0][rows.page_table[1, 0], 2, 9, 0] = float("nan")
    out = paged_attention.attend(q, keys, values, rows, SCALE)
    nan = out.isnan().any(-1)
    assert nan[0].tolist() == [head == 4 for head in range(9)]
    assert nan[1].tolist() == [head >= 6 for head in range(9)]


def test_extreme_scores_stay_finite():
    keys, values, rows = STORAGES["fp32"](1), STORAGES["fp32"](2), rows_of([100], [1])
    q = queries(1) * 1e4
    out = paged_attention.attend(q, keys, values, rows, SCALE)
    torch.testing.assert_close(out, reference.attend(q, keys, values, rows, SCALE), rtol=0, atol=TOLERANCE)


def compiled():
    found = routes.compiled(D, R, torch.bfloat16)
    if found is None:
        pytest.skip("numba is not installed")
    return found


@pytest.mark.parametrize("storage", ["bf16", "fp32"])
def test_neither_batch_nor_width_nor_threads_change_a_compiled_result(storage, monkeypatch):
    jit, _ = compiled()
    keys, values = STORAGES[storage](1), STORAGES[storage](2)
    rows, q = rows_of([61, 0, 125], [4, 2, 3]), queries(9)
    together = paged_attention.attend(q, keys, values, rows, SCALE)
    for row in range(3):
        for token in range(rows.starts[row], rows.starts[row + 1]):
            frontier = rows.frontiers[row] + token - rows.starts[row]
            alone = Rows((0, 1), (frontier,), rows.page_table[row : row + 1])
            assert torch.equal(
                paged_attention.attend(q[token : token + 1], keys, values, alone, SCALE)[0], together[token]
            )
    monkeypatch.setattr(jit, "WORTH_A_TEAM", 0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert torch.equal(paged_attention.attend(q, keys, values, rows, SCALE), together)
    finally:
        torch.set_num_threads(threads)


def test_bf16_queries_are_read_as_they_are():
    keys, values, rows, q = STORAGES["bf16"](1), STORAGES["bf16"](2), rows_of([70], [2]), queries(2).bfloat16()
    for route in (reference.attend, cpu.attend, paged_attention.attend):
        out = route(q, keys, values, rows, SCALE)
        assert out.dtype == torch.float32
        assert torch.equal(out, route(q.float(), keys, values, rows, SCALE))


def test_without_numba_the_torch_route_serves(monkeypatch):
    keys, values, rows, q = STORAGES["bf16"](1), STORAGES["bf16"](2), rows_of([70], [1]), queries(1)
    monkeypatch.setattr(routes, "_jit", lambda: None)
    routes.compiled.cache_clear()
    try:
        assert torch.equal(
            paged_attention.attend(q, keys, values, rows, SCALE), cpu.attend(q, keys, values, rows, SCALE)
        )
    finally:
        routes.compiled.cache_clear()


def test_a_failing_compiler_leaves_the_torch_route(monkeypatch, caplog):
    jit, _ = compiled()
    keys, values, rows, q = STORAGES["bf16"](1), STORAGES["bf16"](2), rows_of([70], [1]), queries(1)

    def fail(*shape):
        raise RuntimeError("no code today")

    monkeypatch.setattr(jit, "kernel", fail)
    routes.compiled.cache_clear()
    try:
        out = paged_attention.attend(q, keys, values, rows, SCALE)
    finally:
        routes.compiled.cache_clear()
    assert torch.equal(out, cpu.attend(q, keys, values, rows, SCALE))
    assert "RuntimeError" in caplog.text
