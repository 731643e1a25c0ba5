"""Gated DeltaNet: the batched routes against the definition, and the definition against itself in other forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer_kernels import gdn

TOLERANCE = 1e-5
G, H, K, V = 2, 6, 16, 32  # K != V, so that a transposed state shows
C, TAPS = 40, 4
SLOTS = 6

# lengths of the rows of a step: decode, verify, one prompt below, at and past a chunk, unequal rows, several chunks
LENGTHS = [(1,), (1, 1, 1), (4, 4), (63,), (64,), (65,), (130,), (1, 7, 3), (64, 2), (70, 65), (200, 1)]
PLACES = {"side by side": [2, 3, 4], "scattered": [4, 0, 2], "backwards": [5, 4, 3]}


def inputs(lengths: tuple[int, ...], slots: list[int], seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    g = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    a_log = torch.empty(H).uniform_(-3, 2.5, generator=g)
    a, b, dt_bias = randn(tokens, H), randn(tokens, H), torch.empty(H).uniform_(-4, 2, generator=g)
    decay, beta = gdn.reference.gates(a, b, a_log, dt_bias)
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    rows = gdn.Rows(starts, slots[: len(lengths)], torch.device("cpu"))
    q, k, v = randn(tokens, G, K).to(dtype), randn(tokens, G, K).to(dtype), randn(tokens, H, V).to(dtype)
    return (q, k, v, decay, beta), randn(SLOTS, H, V, K), rows


def close(got: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    atol = tolerance * max(1.0, float(expected.abs().max()) / 100)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_step_in_place_equals_the_recurrence(lengths, place):
    fed, states, rows = inputs(lengths, PLACES[place])
    expected, wanted = states.clone(), states.clone()
    o, record = gdn.reference.rule_step(*fed, expected, rows, provisional=False)
    got, other = gdn.batched.rule_step(*fed, wanted, rows, provisional=False)
    assert record is None and other is None
    close(got, o)
    close(wanted, expected)
    untouched = [slot for slot in range(SLOTS) if slot not in rows.slots]
    assert torch.equal(wanted[untouched], states[untouched])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_provisional_step_leaves_states_alone_and_folds_what_is_kept(lengths, place, share):
    fed, states, rows = inputs(lengths, PLACES[place], seed=1)
    kept = [int(length * share) for length in lengths]
    got, plain = states.clone(), states.clone()
    o, record = gdn.batched.rule_step(*fed, got, rows, provisional=True)
    assert torch.equal(got, states)
    gdn.batched.rule_fold(record, got, rows, kept)
    for b, slot in enumerate(rows.slots):
        if not kept[b]:
            assert torch.equal(got[slot], states[slot])
            continue
        mine = [x[rows.starts[b] : rows.starts[b] + kept[b]] for x in fed]
        expected, plain[slot] = gdn.reference.delta_rule(*mine, states[slot])
        close(o[rows.starts[b] : rows.starts[b] + kept[b]], expected)
    close(got, plain)


@pytest.mark.parametrize("kept", [[0, 0], [1, 0], [2, 3]])
def test_the_reference_folds_like_it_steps(kept):
    fed, states, rows = inputs((3, 4), [1, 3], seed=2)
    got = states.clone()
    _, record = gdn.reference.rule_step(*fed, got, rows, provisional=True)
    assert torch.equal(got, states)
    gdn.reference.rule_fold(record, got, rows, kept)
    for b, slot in enumerate(rows.slots):
        mine = [x[rows.starts[b] : rows.starts[b] + kept[b]] for x in fed]
        expected = gdn.reference.delta_rule(*mine, states[slot])[1] if kept[b] else states[slot]
        assert torch.equal(got[slot], expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(0, 1 << 16))
def test_however_a_sequence_is_cut_it_ends_in_the_same_state(cuts, seed):
    fed, states, _ = inputs((sum(cuts),), [1], seed)
    expected, state = gdn.reference.delta_rule(*fed, states[1])
    got, out, start = states.clone(), [], 0
    for length in cuts:
        rows = gdn.Rows((0, length), (1,), torch.device("cpu"))
        out.append(gdn.batched.rule_step(*(x[start : start + length] for x in fed), got, rows, provisional=False)[0])
        start += length
    close(torch.cat(out), expected)
    close(got[1], state)


def test_half_precision_inputs_are_computed_in_fp32():
    fed, states, rows = inputs((66,), [1], dtype=torch.bfloat16)
    whole = tuple(x.float() for x in fed)
    expected, got = states.clone(), states.clone()
    o, _ = gdn.reference.rule_step(*whole, expected, rows, provisional=False)
    fast, _ = gdn.batched.rule_step(*fed, got, rows, provisional=False)
    assert fast.dtype is torch.float32
    close(fast, o)
    close(got, expected)


@pytest.mark.parametrize("op", [gdn.batched, gdn.reference], ids=["batched", "reference"])
@pytest.mark.parametrize("lengths", [(1, 1), (70,), (3, 5)], ids=str)
def test_an_fp16_state_is_rounded_when_it_is_written_back_and_never_overflows(op, lengths):
    fed, states, rows = inputs(lengths, [2, 3])
    fed[2][0] = 4e5  # a value beyond fp16's range
    half = states.half()
    whole = half.float()
    o, record = op.rule_step(*fed, half, rows, provisional=True)
    expected, _ = gdn.reference.rule_step(*fed, whole, rows, provisional=False)
    close(o, expected, 1e-4)
    op.rule_fold(record, half, rows, rows.lengths)
    assert half.dtype is torch.float16
    assert torch.isfinite(half).all()
    for slot in rows.slots:
        close(half[slot].float(), whole[slot].clamp(-65504, 65504), 2e-3)


def test_the_decay_reaches_far_without_leaving_the_numbers():
    fed, states, rows = inputs((128,), [1])
    fed[3].fill_(-80.0)  # e^-80 a token: the state is forgotten at once
    expected, got = states.clone(), states.clone()
    o, _ = gdn.reference.rule_step(*fed, expected, rows, provisional=False)
    fast, _ = gdn.batched.rule_step(*fed, got, rows, provisional=False)
    assert torch.isfinite(fast).all()
    close(fast, o)
    close(got, expected)


def conv_inputs(lengths: tuple[int, ...], slots: list[int], dtype: torch.dtype, taps: int) -> Any:
    g = torch.Generator().manual_seed(5)
    _, _, rows = inputs(lengths, slots)
    x = torch.randn(sum(lengths), C, generator=g).to(dtype)
    history = torch.randn(SLOTS, taps - 1, C, generator=g).to(dtype)
    return x, history, torch.randn(taps, C, generator=g), rows


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (2, 2), (9,), (1, 5, 3)], ids=str)
def test_the_convolution_equals_its_definition_in_place_and_folded(lengths, dtype, taps):
    for place in PLACES.values():
        x, history, weight, rows = conv_inputs(lengths, place, dtype, taps)
        expected, got, folded = history.clone(), history.clone(), history.clone()
        y, _ = gdn.reference.conv_step(x, expected, weight, rows, provisional=False)
        fast, _ = gdn.batched.conv_step(x, got, weight, rows, provisional=False)
        later, record = gdn.batched.conv_step(x, folded, weight, rows, provisional=True)
        tolerance = TOLERANCE if dtype is torch.float32 else 2e-2
        close(fast.float(), y.float(), tolerance)
        assert torch.equal(later, fast)
        assert torch.equal(got, expected)
        assert torch.equal(folded, history)
        gdn.batched.conv_fold(record, folded, rows, rows.lengths)
        assert torch.equal(folded, expected)


@pytest.mark.parametrize("op", [gdn.batched, gdn.reference], ids=["batched", "reference"])
@pytest.mark.parametrize("kept", [[0, 0], [0, 2], [1, 5]])
def test_the_convolution_keeps_the_rows_before_the_frontier(op, kept):
    x, history, weight, rows = conv_inputs((4, 5), [3, 1], torch.float32, TAPS)
    got = history.clone()
    _, record = op.conv_step(x, got, weight, rows, provisional=True)
    op.conv_fold(record, got, rows, kept)
    for b, slot in enumerate(rows.slots):
        fed = x[rows.starts[b] : rows.starts[b] + kept[b]]
        assert torch.equal(got[slot], torch.cat((history[slot], fed))[-(TAPS - 1) :])


def test_the_convolution_is_causal_and_its_last_tap_is_the_token_itself():
    x = torch.zeros(5, C)
    x[2] = 1.0
    weight = torch.arange(1.0, TAPS + 1)[:, None].expand(TAPS, C)
    y, after = gdn.reference.causal_conv(x, torch.zeros(TAPS - 1, C), weight)
    assert torch.equal(y[:2], torch.zeros(2, C))
    close(y[2:, 0], torch.nn.functional.silu(torch.tensor([4.0, 3.0, 2.0])))
    assert torch.equal(after, x[2:])


def whole(op: Any, lengths: tuple[int, ...], kept: Any = None) -> Any:
    """Two layers of a step, and the fold of what is ``kept`` where it is provisional."""
    g = torch.Generator().manual_seed(7)
    channels = 2 * G * K + H * V
    _, states, rows = inputs(lengths, [3, 1, 4])
    layers = [
        gdn.Layer(
            key_heads=G, value_heads=H, key_dim=K, value_dim=V, convolution=torch.randn(TAPS, channels, generator=g),
            a_log=torch.randn(H, generator=g), dt_bias=torch.randn(H, generator=g),
            norm=1 + torch.randn(V, generator=g) / 10, eps=1e-6,
        )
        for _ in range(2)
    ]  # fmt: skip
    parts = gdn.Parts([torch.randn(SLOTS, TAPS - 1, channels, generator=g) for _ in range(2)], [states, -states])
    # one stack of all projections: what a layer is given are views of it
    stacks = [torch.randn(sum(lengths), channels + H * V + 2 * H, generator=g) for _ in range(2)]
    tape = None if kept is None else gdn.Tape.of(2)
    before = [x.clone() for x in (*parts.histories, *parts.states)]
    out = [
        op.step(x[:, : channels + H * V], x[:, channels + H * V :], layers[i], parts, i, rows, tape)
        for i, x in enumerate(stacks)
    ]
    if tape is not None:
        assert all(map(torch.equal, before, (*parts.histories, *parts.states)))
        op.fold(tape, parts, rows, kept)
    return out, [*parts.histories, *parts.states]


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ((1, 1), None),
        ((70, 3), None),
        ((1,), [1]),
        ((4, 2), [0, 2]),
        ((3, 3, 3), torch.tensor([3, 0, 1])),
        ((70, 3), torch.tensor([66, 3])),
    ],
    ids=str,
)
def test_whole_layers_equal_the_definition(lengths, kept):
    (got, after), (expected, wanted) = whole(gdn, lengths, kept), whole(gdn.reference, lengths, kept)
    for one, other in zip((*got, *after), (*expected, *wanted), strict=True):
        close(one, other, 3e-5)
