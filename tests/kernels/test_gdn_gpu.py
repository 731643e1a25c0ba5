"""The Triton routes of Gated DeltaNet against the definition: on a GPU, else under the interpreter."""

import pytest
import torch

from ninfer_kernels import gdn

SLOTS = 7
TOLERANCE = 1e-5  # fp32 inside: other orders of the same sums
# key heads, value heads, key dimension, value dimension: K != V, so that a transposed state shows
HEADS = [(2, 6, 16, 24), (1, 1, 8, 33), (2, 4, 32, 16)]
LENGTHS = [(1,), (1, 1, 1), (4, 4), (1, 7, 3), (17,), (64, 2)]
SLOT_ORDER = [4, 0, 2]


def randn(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_of(lengths, device="cpu"):
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return gdn.Rows(starts, SLOT_ORDER[: len(lengths)], torch.device(device))


def recorded_rows(places, widths, slots, device):
    """Rows of a recorded step: places of one width, of which row ``b`` uses ``widths[b]`` columns."""
    uploaded = gdn.OnDevice(
        torch.arange(len(widths), device=device) * places,
        torch.tensor(widths, device=device),
        torch.tensor(slots, device=device),
    )
    # what the host says is from the day of the recording
    return gdn.Rows(range(0, len(widths) * places + 1, places), range(len(widths)), torch.device(device), uploaded)


def rule_inputs(tokens, heads, dtype=torch.float32):
    G, H, K, V = heads
    g, beta = gdn.reference.gates(
        randn(tokens, H, seed=1), randn(tokens, H, seed=2), randn(H, seed=3), randn(H, seed=4)
    )
    fed = [randn(tokens, G, K, seed=5), randn(tokens, G, K, seed=6), randn(tokens, H, V, seed=7)]
    return (*(x.to(dtype) for x in fed), g, beta), randn(SLOTS, H, V, K, seed=8)


def to(tensors, device):
    return tuple(x.to(device) for x in tensors)


def close(got, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(got.cpu().float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_step_in_place_equals_the_recurrence(lengths, heads, device):
    from ninfer_kernels.gdn import gpu

    fed, states = rule_inputs(sum(lengths), heads)
    expected, got = states.clone(), states.clone().to(device)
    o, _ = gdn.reference.rule_step(*fed, expected, rows_of(lengths), provisional=False)
    fast, record = gpu.rule_step(*to(fed, device), got, rows_of(lengths, device), provisional=False)
    assert record is None
    close(fast, o)
    close(got, expected)
    untouched = [slot for slot in range(SLOTS) if slot not in SLOT_ORDER[: len(lengths)]]
    assert torch.equal(got[untouched].cpu(), states[untouched])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_provisional_step_leaves_states_alone_and_folds_what_is_kept(lengths, share, device):
    from ninfer_kernels.gdn import gpu

    fed, states = rule_inputs(sum(lengths), HEADS[0])
    kept = [int(length * share) for length in lengths]
    rows, got, expected = rows_of(lengths, device), states.clone().to(device), states.clone()
    o, _ = gdn.reference.rule_step(*fed, expected, rows_of(lengths), provisional=True)
    fast, record = gpu.rule_step(*to(fed, device), got, rows, provisional=True)
    close(fast, o)
    assert torch.equal(got.cpu(), states)
    gdn.reference.rule_fold(fed, expected, rows_of(lengths), kept)
    counted = got.clone()
    gpu.rule_fold(record, got, rows, kept)
    gpu.rule_fold(record, counted, rows, torch.tensor(kept, device=device))
    close(got, expected)
    assert torch.equal(got, counted)
    for b, slot in enumerate(rows.slots):
        if not kept[b]:
            assert torch.equal(got[slot].cpu(), states[slot])


def test_what_is_folded_is_bit_equal_to_what_was_seen(device):
    from ninfer_kernels.gdn import gpu

    fed, states = rule_inputs(6, HEADS[0])
    provisional, plain = states.clone().to(device), states.clone().to(device)
    o, record = gpu.rule_step(*to(fed, device), provisional, rows_of((6,), device), provisional=True)
    gpu.rule_fold(record, provisional, rows_of((6,), device), [4])
    head = to((x[:4] for x in fed), device)
    said, _ = gpu.rule_step(*head, plain, rows_of((4,), device), provisional=False)
    assert torch.equal(o[:4], said)
    assert torch.equal(provisional, plain)


@pytest.mark.parametrize("widths", [[1, 1], [4, 4], [2, 4], [1, 3]], ids=str)
def test_columns_without_a_token_are_not_seen(widths, device):
    from ninfer_kernels.gdn import gpu

    fed, states = rule_inputs(8, HEADS[0])
    slots = [5, 3]
    poisoned = [x.clone() for x in fed]
    for x in poisoned:
        for b, width in enumerate(widths):
            x[b * 4 + width : b * 4 + 4] = float("nan")
    got = states.clone().to(device)
    rows = recorded_rows(4, widths, slots, device)
    o, record = gpu.rule_step(*to(poisoned, device), got, rows, provisional=True)
    kept = [max(width - 1, 0) for width in widths]
    gpu.rule_fold(record, got, rows, torch.tensor(kept, device=device))
    expected = states.clone()
    for b, slot in enumerate(slots):
        mine = [x[b * 4 : b * 4 + widths[b]] for x in fed]
        close(o[b * 4 : b * 4 + widths[b]], gdn.reference.delta_rule(*mine, states[slot])[0])
        if kept[b]:
            expected[slot] = gdn.reference.delta_rule(*(x[: kept[b]] for x in mine), states[slot])[1]
    close(got, expected)


def test_an_fp16_state_is_rounded_when_it_is_written_back_and_never_overflows(device):
    from ninfer_kernels.gdn import gpu

    fed, states = rule_inputs(3, HEADS[0])
    fed[2][0] = 4e5  # a value beyond fp16's range
    half, expected = states.half().to(device), states.half()
    o, _ = gdn.reference.rule_step(*fed, expected, rows_of((3,)), provisional=False)
    fast, _ = gpu.rule_step(*to(fed, device), half, rows_of((3,), device), provisional=False)
    assert half.dtype is torch.float16 and torch.isfinite(half).all()
    close(fast, o, 1e-4)
    # one rounding to 11 bits, of numbers that differ in the order of their sums
    torch.testing.assert_close(half.cpu().float(), expected.float(), rtol=2e-3, atol=1e-3)


def test_views_of_a_stacked_projection_are_read_in_place(device):
    from ninfer_kernels.gdn import gpu

    G, H, K, V = HEADS[0]
    (_, _, _, g, beta), states = rule_inputs(5, HEADS[0])
    stacked = randn(5, 2 * G * K + H * V, seed=9)
    q, k, v = stacked.split((G * K, G * K, H * V), dim=-1)
    fed = (q.unflatten(-1, (G, K)), k.unflatten(-1, (G, K)), v.unflatten(-1, (H, V)), g, beta)
    expected, got, on = states.clone(), states.clone().to(device), stacked.to(device)
    q, k, v = on.split((G * K, G * K, H * V), dim=-1)
    placed = (q.unflatten(-1, (G, K)), k.unflatten(-1, (G, K)), v.unflatten(-1, (H, V)), *to((g, beta), device))
    o, _ = gdn.reference.rule_step(*fed, expected, rows_of((5,)), provisional=False)
    fast, _ = gpu.rule_step(*placed, got, rows_of((5,), device), provisional=False)
    close(fast, o)
    close(got, expected)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (9,), (1, 5, 3)], ids=str)
@pytest.mark.parametrize("C", [40, 300])
def test_the_convolution_equals_its_definition_in_place_and_folded(C, lengths, taps, device):
    from ninfer_kernels.gdn import gpu

    stacked, history = randn(sum(lengths), C + 8, seed=1), randn(SLOTS, taps - 1, C, seed=2)
    weight, x = randn(taps, C, seed=3), stacked[:, :C]
    expected, got, folded = history.clone(), history.clone().to(device), history.clone().to(device)
    y, _ = gdn.reference.conv_step(x, expected, weight, rows_of(lengths), provisional=False)
    rows, view = rows_of(lengths, device), stacked.to(device)[:, :C]
    fast, _ = gpu.conv_step(view, got, weight.to(device), rows, provisional=False)
    later, record = gpu.conv_step(view, folded, weight.to(device), rows, provisional=True)
    close(fast, y)
    assert torch.equal(later, fast)
    assert torch.equal(got.cpu(), expected)
    assert torch.equal(folded.cpu(), history)
    gpu.conv_fold(record, folded, rows, rows.lengths)
    assert torch.equal(folded.cpu(), expected)


@pytest.mark.parametrize("kept", [[0, 0], [0, 2], [1, 3], [4, 1]], ids=str)
def test_the_history_moves_over_what_is_kept_of_a_recorded_step(kept, device):
    from ninfer_kernels.gdn import gpu

    x, history, weight, slots = randn(8, 40, seed=1), randn(SLOTS, 3, 40, seed=2), randn(4, 40, seed=3), [6, 1]
    rows, got = recorded_rows(4, [4, 3], slots, device), history.clone().to(device)
    y, record = gpu.conv_step(x.to(device), got, weight.to(device), rows, provisional=True)
    gpu.conv_fold(record, got, rows, torch.tensor(kept, device=device))
    expected = history.clone()
    for b, (slot, width) in enumerate(zip(slots, [4, 3], strict=True)):
        own = x[4 * b : 4 * b + width]
        close(y[4 * b : 4 * b + width], gdn.reference.causal_conv(own, history[slot], weight)[0])
        expected[slot] = torch.cat((history[slot], own[: kept[b]]))[kept[b] :]
    assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize(("T", "H"), [(1, 48), (7, 5), (65, 16)])
def test_gates_equal_their_definition(T, H, device):
    from ninfer_kernels.gdn import gpu

    stacked = randn(T, 2 * H, seed=1) * 12
    stacked[0, 0], stacked[0, H - 1] = 90.0, -90.0
    a_log, dt_bias = randn(H, seed=2), randn(H, seed=3)
    on = stacked.to(device)
    got = gpu.gates(on[:, :H], on[:, H:], a_log.to(device), dt_bias.to(device))
    for fast, expected in zip(got, gdn.reference.gates(stacked[:, :H], stacked[:, H:], a_log, dt_bias), strict=True):
        torch.testing.assert_close(fast.cpu(), expected, rtol=5e-6, atol=1e-30)


def test_routes_take_the_kernels_for_short_rows_and_torch_for_long_ones(device, monkeypatch):
    from ninfer_kernels.gdn import gpu

    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    asked, rule = [], gpu.rule_step
    monkeypatch.setattr(gpu, "rule_step", lambda *a, **k: asked.append(1) or rule(*a, **k))
    for length, times in ((64, 1), (65, 0)):
        fed, states = rule_inputs(length, HEADS[0])
        expected, got = states.clone(), states.clone().to(device)
        asked.clear()
        o, record = gdn.rule_step(*to(fed, device), got, rows_of((length,), device), provisional=True)
        gdn.rule_fold(record, got, rows_of((length,), device), [length - 3])
        said, _ = gdn.reference.rule_step(*fed, expected, rows_of((length,)), provisional=True)
        gdn.reference.rule_fold(fed, expected, rows_of((length,)), [length - 3])
        assert len(asked) == times
        close(o, said)
        close(got, expected)


@pytest.mark.parametrize("place", [65, 4])
def test_a_recorded_step_that_no_kernel_serves_is_refused(place, device):
    """The host's numbers would be those of the day it was recorded."""
    fed, states = rule_inputs(2 * place, (2, 6, 16 if place == 65 else 24, 16))
    rows = recorded_rows(place, [1, 1], [0, 1], device)
    with pytest.raises(RuntimeError, match="recorded step"):
        gdn.rule_step(*to(fed, device), states.to(device), rows, provisional=True)
