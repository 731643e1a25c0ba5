"""The Triton routes of Gated DeltaNet against the definition: on a GPU, else under the interpreter."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_kernels import gdn

gpu = pytest.importorskip("ninfer_kernels.gdn.gpu")
gpu_chunks = pytest.importorskip("ninfer_kernels.gdn.gpu_chunks")

CUDA = torch.cuda.is_available()
ON = torch.device("cuda" if CUDA else "cpu")
SLOTS = 7
SLOT_ORDER = [4, 0, 2, 5, 1, 3, 6]
# key heads, value heads, key dimension, value dimension: K != V, so that a transposed state shows
HEADS = [(2, 4, 16, 24), (1, 1, 8, 33), (1, 2, 64, 16)]
FEW_HEADS, ONE_HEAD = (1, 2, 16, 24), (1, 1, 8, 16)  # the interpreter takes 20 ms a program
TRUE_HEADS = (16, 48, 128, 128)
LENGTHS = [(1,), (1, 1, 1), (4, 4), (1, 5, 3), (17,)]
LONG = [(17,), (66, 2)] + ([(64,), (65,), (130, 1, 70), (300, 17)] if CUDA else [])
FP32 = 1e-5  # other orders of the same sums


def randn(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Case:
    """A model of some layers, its states, and a step of some rows: the definition's, and a copy for the kernels."""

    layers: list
    mixed: list
    ab: list
    histories: list
    states: list
    lengths: tuple

    def parts(self, device):
        return gdn.Parts([x.clone().to(device) for x in self.histories], [x.clone().to(device) for x in self.states])

    def rows(self, device=ON):
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        return gdn.Rows(starts, SLOT_ORDER[: len(self.lengths)], torch.device(device))

    def on(self, device):
        layers = [moved(layer, device) for layer in self.layers]
        return layers, [x.to(device) for x in self.mixed], [x.to(device) for x in self.ab]


def case(heads, lengths, layers=1, dtype=torch.float32, taps=4, state=torch.float32):
    """Inputs lie side by side in one stack, further apart than they are long, as a stacked projection leaves them."""
    (G, H, K, V), T = heads, sum(lengths)
    C, made = 2 * G * K + H * V, []
    for i in range(layers):
        layer = gdn.Layer(
            key_heads=G, value_heads=H, key_dim=K, value_dim=V, convolution=randn(taps, C, seed=10 + i) / 2,
            a_log=randn(H, seed=20 + i), dt_bias=randn(H, seed=30 + i), norm=1 + randn(V, seed=40 + i) / 10, eps=1e-6,
        )  # fmt: skip
        made.append(layer)
    stacks = [randn(T, C + H * V + 2 * H + 5, seed=50 + i, dtype=dtype) for i in range(layers)]
    return Case(
        layers=made,
        mixed=[x[:, : C + H * V] for x in stacks],
        ab=[x[:, C + H * V : -5] for x in stacks],
        histories=[randn(SLOTS, taps - 1, C, seed=60 + i, dtype=dtype) for i in range(layers)],
        states=[randn(SLOTS, H, V, K, seed=70 + i, dtype=state) for i in range(layers)],
        lengths=tuple(lengths),
    )


def moved(layer, device):
    names = ("convolution", "a_log", "dt_bias", "norm")
    tensors = {name: getattr(layer, name).to(device) for name in names}
    sizes = {name: getattr(layer, name) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "eps")}
    return gdn.Layer(**tensors, **sizes)


def said(op, c, parts, rows, device, tape=None):
    """What every layer says of a step."""
    layers, mixed, ab = c.on(device)
    return [op.step(mixed[i], ab[i], layers[i], parts, i, rows, tape) for i in range(len(layers))]


def close(got, expected, tolerance=FP32):
    torch.testing.assert_close(got.cpu().float(), expected.float(), rtol=tolerance, atol=tolerance)


def same(got, expected):
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(got, expected, strict=True))


def untouched(c, parts, slots):
    """These slots have the bits they had."""
    return same([x[slots] for x in parts.histories], [x[slots] for x in c.histories]) and same(
        [x[slots] for x in parts.states], [x[slots] for x in c.states]
    )


def check_round(c, kept, as_tensor=False, tolerance=FP32):
    """A provisional step and its fold, all layers, against the definition."""
    got, expected, layers = c.parts(ON), c.parts("cpu"), len(c.layers)
    rows, tape, plain = c.rows(), gdn.Tape.of(layers), gdn.Tape.of(layers)
    outs = said(gpu, c, got, rows, ON, tape)
    for fast, y in zip(outs, said(gdn.reference, c, expected, c.rows("cpu"), "cpu", plain), strict=True):
        close(fast, y, tolerance)
    assert untouched(c, got, range(SLOTS))
    gpu.fold(tape, got, rows, torch.tensor(kept, device=ON) if as_tensor else kept)
    gdn.reference.fold(plain, expected, c.rows("cpu"), kept)
    assert same(got.histories, expected.histories)
    for fast, state in zip(got.states, expected.states, strict=True):
        close(fast, state, tolerance)
    moving = {slot for slot, count in zip(rows.slots, kept, strict=True) if count}
    assert untouched(c, got, [slot for slot in range(SLOTS) if slot not in moving])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_provisional_step_leaves_states_alone_and_folds_what_is_kept(lengths):
    check_round(case(FEW_HEADS, lengths), [(length + b % 2) // 2 for b, length in enumerate(lengths)])


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
@pytest.mark.parametrize("kept", [(0, 0), (1, 3), (0, 2)], ids=str)
def test_a_row_that_keeps_nothing_keeps_its_bits(kept, as_tensor):
    check_round(case(ONE_HEAD, (1, 3)), list(kept), as_tensor=as_tensor)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads_of_any_size_are_served(heads):
    check_round(case(heads, (1, 2), layers=2), [1, 1])


@pytest.mark.parametrize("taps", [1, 2, 3, 5])
def test_a_history_of_any_length_moves_over_what_is_kept(taps):
    check_round(case(ONE_HEAD, (2, 3), taps=taps), [2, 1])


def check_last(lengths, kept, width, as_tensor, dtype=torch.float32, kept_as=None):
    """The last kept rows of a view of a stack, into slots of a view; the rest of the slots keep their bits."""
    starts = [sum(lengths[:b]) for b in range(len(lengths) + 1)]
    x = randn(starts[-1], width + 3, seed=width, dtype=dtype)[:, 1 : 1 + width]
    room = randn(SLOTS, width + 5, seed=1, dtype=kept_as or dtype)
    expected, got = room.clone()[:, 2 : 2 + width], room.clone().to(ON)[:, 2 : 2 + width]
    rows = [gdn.Rows(starts, SLOT_ORDER[: len(lengths)], torch.device(at)) for at in (ON, "cpu")]
    gdn.reference.keep_last(x, expected, rows[1], kept)
    gpu.keep_last(x.to(ON), got, rows[0], torch.tensor(kept, device=ON) if as_tensor else kept)
    assert torch.equal(got.cpu(), expected)
    for b, slot in enumerate(rows[1].slots):
        last = x[starts[b] + kept[b] - 1].to(room.dtype) if kept[b] else room[slot, 2 : 2 + width]
        assert torch.equal(expected[slot], last)
    assert torch.equal(expected[SLOT_ORDER[len(lengths) :]], room[SLOT_ORDER[len(lengths) :], 2 : 2 + width])


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
@pytest.mark.parametrize("width", [1, 100, 1024, 2049])
@pytest.mark.parametrize(("lengths", "kept"), [((1,), (1,)), ((4, 1, 3), (0, 1, 2)), ((2, 2), (0, 0))], ids=str)
def test_the_row_of_the_last_kept_token_goes_to_its_slot(lengths, kept, width, as_tensor):
    check_last(lengths, list(kept), width, as_tensor)


@pytest.mark.parametrize(
    ("dtype", "kept_as"), [(torch.float16, None), (torch.bfloat16, None), (torch.float32, torch.float16)]
)
def test_rows_of_any_float_are_kept_as_their_part_holds_them(dtype, kept_as):
    check_last((3, 2), [3, 1], 40, True, dtype, kept_as)


@settings(max_examples=40 if CUDA else 10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=SLOTS))
def test_rows_of_any_lengths_keep_the_last_of_any_number_of_tokens(rows):
    check_last([length for length, _ in rows], [min(row) for row in rows], 17, True)


@pytest.mark.parametrize("launched", [True, False])
def test_what_is_kept_last_is_the_same_on_every_route(launched, monkeypatch):
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: launched)
    asked, kernel = [], gpu.keep_last
    monkeypatch.setattr(gpu, "keep_last", lambda *given: asked.append(1) or kernel(*given))
    x, part = randn(5, 9, seed=2).to(ON), randn(SLOTS, 9, seed=3).to(ON)
    rows, wanted = gdn.Rows((0, 2, 5), (4, 0), ON), part.clone()
    wanted[4], wanted[0] = x[0], x[4]
    gdn.keep_last(x, part, rows, torch.tensor([1, 3], device=ON))
    assert torch.equal(part, wanted)
    gdn.keep_last(x, part, rows, [0, 1])
    wanted[0] = x[2]
    assert torch.equal(part, wanted)
    assert len(asked) == 2 * launched


@settings(max_examples=40 if CUDA else 6, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=3))
def test_rows_of_any_lengths_keep_any_number_of_tokens(rows):
    check_round(case(ONE_HEAD, [length for length, _ in rows]), [min(row) for row in rows], as_tensor=True)


@pytest.mark.parametrize("lengths", [(1,), (3, 1)], ids=str)
def test_short_rows_in_place_equal_the_recurrence(lengths):
    c = case(FEW_HEADS, lengths, layers=2)
    got, expected = c.parts(ON), c.parts("cpu")
    outs = said(gpu, c, got, c.rows(), ON)
    for fast, y in zip(outs, said(gdn.reference, c, expected, c.rows("cpu"), "cpu"), strict=True):
        close(fast, y)
    assert same(got.histories, expected.histories)
    for fast, state in zip(got.states, expected.states, strict=True):
        close(fast, state)
    assert untouched(c, got, SLOT_ORDER[len(lengths) :])


FED = 12 if CUDA else 6
# rounds of (width, kept) that keep all that is fed; what is drafted and not kept is fed again
WALKS = [[(FED, FED)], [(1, 1), (FED - 2, FED - 2), (1, 1)], [(4, 1), (4, 2), (4, 3), *[(2, 2)] * (FED // 2 - 3)]]


@pytest.mark.parametrize("walk", WALKS, ids=str)
@pytest.mark.parametrize("heads", [FEW_HEADS, *([TRUE_HEADS, (16, 32, 128, 128)] if CUDA else [])], ids=str)
def test_a_row_has_the_same_bits_whatever_the_width_of_a_round(heads, walk):
    dtype = torch.bfloat16 if CUDA else torch.float32
    c = case(heads, (FED, FED), layers=2 if CUDA else 1, dtype=dtype)
    outs, parts = walked(c, [(1, 1)] * FED)
    got, after = walked(c, walk)
    assert same(got, outs)
    assert same(after.states, parts.states)
    assert same(after.histories, parts.histories)


def walked(c, walk):
    """Rounds of (width, kept) over both rows: the outputs of what was kept, the states in the end."""
    parts, done, outs = c.parts(ON), 0, [[] for _ in c.layers]
    for width, kept in walk:
        index = torch.tensor([row * FED + min(done + i, FED - 1) for row in range(2) for i in range(width)])
        now = Case(c.layers, [x[index] for x in c.mixed], [x[index] for x in c.ab], [], [], (width, width))
        rows, tape = now.rows(), gdn.Tape.of(len(c.layers))
        for kept_of, y in zip(outs, said(gpu, now, parts, rows, ON, tape), strict=True):
            kept_of.append(y.view(2, width, -1)[:, :kept])
        gpu.fold(tape, parts, rows, [kept, kept])
        done += kept
    assert done == FED
    return [torch.cat(own, 1) for own in outs], parts


def recorded_rows(places, widths, slots):
    """Rows of a recorded step: places of one width, of which row ``b`` uses ``widths[b]`` columns."""
    uploaded = gdn.OnDevice(
        torch.arange(len(widths), device=ON) * places,
        torch.tensor(widths, device=ON),
        torch.tensor(slots, device=ON),
    )
    # what the host says is from the day of the recording
    return gdn.Rows(range(0, len(widths) * places + 1, places), range(len(widths)), ON, uploaded)


@pytest.mark.parametrize("widths", [[1, 1], [2, 4]], ids=str)
def test_columns_without_a_token_are_not_seen(widths):
    c, slots = case(FEW_HEADS, (4, 4)), [5, 3]
    plain, poisoned = c.parts("cpu"), [[x.clone() for x in side] for side in (c.mixed, c.ab)]
    for b, width in enumerate(widths):
        for side in poisoned:
            for x in side:
                x[b * 4 + width : b * 4 + 4] = float("nan")
    # the rows as they are, in the same places of the states
    own = torch.tensor([b * 4 + i for b, width in enumerate(widths) for i in range(width)])
    alone = Case(c.layers, [x[own] for x in c.mixed], [x[own] for x in c.ab], [], [], tuple(widths))
    starts = (0, widths[0], sum(widths))
    rows, tape, kept = gdn.Rows(starts, slots, torch.device("cpu")), gdn.Tape.of(1), [width - 1 for width in widths]
    expected = said(gdn.reference, alone, plain, rows, "cpu", tape)
    gdn.reference.fold(tape, plain, rows, kept)

    got, on, tape = c.parts(ON), recorded_rows(4, widths, slots), gdn.Tape.of(1)
    dirty = Case(c.layers, *poisoned, [], [], (4, 4))
    for fast, y in zip(said(gpu, dirty, got, on, ON, tape), expected, strict=True):
        close(fast.cpu()[own], y)
    gpu.fold(tape, got, on, torch.tensor(kept, device=ON))
    assert same(got.histories, plain.histories)
    for fast, state in zip(got.states, plain.states, strict=True):
        close(fast, state)


def in_chunks(c, tolerance=FP32):
    got, expected = c.parts(ON), c.parts("cpu")
    (layer,), (mixed,), (ab,) = c.on(ON)
    fast = gpu_chunks.step(mixed, ab, layer, got, 0, c.rows())
    (y,) = said(gdn.reference, c, expected, c.rows("cpu"), "cpu")
    assert same(got.histories, expected.histories)
    assert untouched(c, got, SLOT_ORDER[len(c.lengths) :])
    if tolerance == FP32:
        close(fast, y)
        close(got.states[0], expected.states[0])
    return (fast, y), (got.states[0], expected.states[0])


@pytest.mark.parametrize("lengths", LONG, ids=str)
def test_chunks_equal_the_recurrence(lengths):
    in_chunks(case((1, 2, 16, 24), lengths))


@pytest.mark.parametrize(("taps", "lengths"), [(1, (2,)), (2, (18,)), (6, (3,))])
def test_chunks_read_a_history_of_any_length(taps, lengths):
    in_chunks(case((1, 1, 32, 80), lengths, taps=taps))


@pytest.mark.parametrize("long", [False, True], ids=["one by one", "chunks"])
def test_an_fp16_state_is_rounded_when_it_is_written_back_and_never_overflows(long):
    c = case((1, 2, 16, 24), (3,), state=torch.float16)
    c.states[0][SLOT_ORDER[0], 0, 0, 0] = 6e4
    c.mixed[0][:, 32:80] = 4e5  # values beyond fp16's range
    got, expected = c.parts(ON), c.parts("cpu")
    (layer,), (mixed,), (ab,) = c.on(ON)
    fast = (gpu_chunks if long else gpu).step(mixed, ab, layer, got, 0, c.rows())
    (y,) = said(gdn.reference, c, expected, c.rows("cpu"), "cpu")
    state = got.states[0]
    assert state.dtype is torch.float16 and torch.isfinite(state).all()
    assert state.abs().max() == 65504
    close(fast, y, 1e-4)
    # one rounding to 11 bits, of numbers that differ in the order of their sums
    torch.testing.assert_close(state.cpu().float(), expected.states[0].float(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("long", [False, True], ids=["one by one", "chunks"])
def test_gates_at_their_ends_stay_numbers(long):
    """A state that is forgotten at once, and one that is kept whole."""
    c = case((1, 2, 16, 24), (3,))
    c.ab[0][:, 0], c.ab[0][:, 1], c.ab[0][1, 2:] = 90.0, -90.0, -90.0
    got, expected = c.parts(ON), c.parts("cpu")
    (layer,), (mixed,), (ab,) = c.on(ON)
    fast = (gpu_chunks if long else gpu).step(mixed, ab, layer, got, 0, c.rows())
    (y,) = said(gdn.reference, c, expected, c.rows("cpu"), "cpu")
    close(fast, y)
    close(got.states[0], expected.states[0])


@pytest.mark.skipif(not CUDA, reason="bf16 products are wrong under the interpreter")
@pytest.mark.parametrize("heads", [TRUE_HEADS, (16, 32, 128, 128)], ids=str)
@pytest.mark.parametrize("lengths", [(64,), (300, 1, 17), (1000,)], ids=str)
def test_chunks_of_bf16_are_close_to_the_recurrence_and_repeat_their_bits(lengths, heads):
    c = case(heads, lengths, dtype=torch.bfloat16)
    (fast, y), (state, expected) = in_chunks(c, 1e-2)
    (again, _), (state_again, _) = in_chunks(c, 1e-2)
    assert torch.equal(fast, again) and torch.equal(state, state_again)
    # factors of the products are rounded to 8 bits, sums and states are not
    for got, wanted in ((fast.cpu().float(), y.float()), (state.cpu(), expected)):
        assert (got - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.skipif(not CUDA, reason="bf16 is cut off where a GPU rounds")
@pytest.mark.parametrize("lengths", [(1,), (4, 1, 3), (8,) * 7, (24,)], ids=str)
def test_rounds_of_bf16_at_true_sizes(lengths):
    check_round(case(TRUE_HEADS, lengths, layers=2, dtype=torch.bfloat16), list(lengths), tolerance=2e-2)


@pytest.fixture
def asked(monkeypatch):
    """The routes that are asked, where kernels are launched; rows are long early."""
    monkeypatch.setattr(gpu, "SHORT", 2)
    monkeypatch.setattr(gpu, "FEW", 4)
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    names = []
    for module, name in ((gpu, "_step"), (gpu_chunks, "step")):
        plain = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, plain=plain, of=module.__name__, **k: names.append(of) or plain(*a, **k)
        )
    return names


@pytest.mark.parametrize(
    ("length", "provisional", "by"),
    [
        (2, False, [gpu.__name__]),
        (3, False, [gpu_chunks.__name__]),
        (4, True, [gpu.__name__]),
        (5, True, []),
    ],
)
def test_rows_take_the_route_of_their_length(length, provisional, by, asked):
    c = case((1, 1, 16, 24), (length,))
    got, expected = c.parts(ON), c.parts("cpu")
    tape, plain = (gdn.Tape.of(1) if provisional else None for _ in range(2))
    (fast,), (y,) = said(gdn, c, got, c.rows(), ON, tape), said(gdn.reference, c, expected, c.rows("cpu"), "cpu", plain)
    if tape is not None and plain is not None:
        gdn.fold(tape, got, c.rows(), [length - 1])
        gdn.reference.fold(plain, expected, c.rows("cpu"), [length - 1])
    assert asked == by
    close(fast, y)
    close(got.states[0], expected.states[0])
    assert same(got.histories, expected.histories)


@pytest.mark.parametrize("heads", [(1, 1, 24, 16), (1, 1, 512, 16)], ids=str)
def test_long_rows_of_heads_no_tile_fits_go_by_torch(heads, asked):
    c = case(heads, (9,))
    (fast,), (y,) = (
        said(op, c, c.parts(on), c.rows(on), on) for op, on in ((gdn, ON), (gdn.reference, torch.device("cpu")))
    )
    assert asked == []
    close(fast, y)


@pytest.mark.parametrize(("place", "heads"), [(5, (1, 1, 16, 16)), (1, (1, 1, 257, 16))], ids=str)
def test_a_recorded_step_that_no_kernel_serves_is_refused(place, heads, asked):
    """The host's numbers would be those of the day it was recorded."""
    c = case(heads, (place, place))
    with pytest.raises(RuntimeError, match="recorded step"):
        said(gdn, c, c.parts(ON), recorded_rows(place, [1, 1], [0, 1]), ON, gdn.Tape.of(1))
