"""The Triton routes of norms, rotary embedding and gates against their references: on a GPU, else under the
interpreter."""

import pytest
import torch

from ninfer_kernels import activation, norm, rope

# other orders of the same sums; one rounding to 8 bits beside it
TOLERANCE = {torch.float32: (2e-6, 2e-6), torch.float16: (1e-3, 1e-5), torch.bfloat16: (8e-3, 1e-5)}
# the interpreter cuts bf16 off where a GPU rounds
KINDS = list(TOLERANCE)[: 3 if torch.cuda.is_available() else 2]
DTYPES = pytest.mark.parametrize("dtype", KINDS, ids=str)
WIDTHS = [(1, 64), (1, 5120), (7, 100), (3, 1), (130, 33)]
HEADS = [(1, 28, 256), (3, 5, 96), (70, 1, 17), (2, 3, 8)]


def randn(*shape, dtype=torch.float32, seed=0, scale=3.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def close(got, expected, dtype):
    rtol, atol = TOLERANCE[dtype]
    assert got.dtype is dtype
    torch.testing.assert_close(got.cpu(), expected, rtol=rtol, atol=atol)


def angles(T, R):
    return rope.rotation(torch.arange(T) * 37 + 5, rope.frequencies.plain(R, 1e4))


def ids(shape):
    return "-".join(map(str, shape))


@DTYPES
@pytest.mark.parametrize("shape", WIDTHS, ids=ids)
def test_rms_norm_equals_its_reference(shape, dtype, device):
    from ninfer_kernels.norm import gpu

    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], seed=1)
    x[0] = 0
    got = gpu.rms_norm(x.to(device), weight.to(device), 1e-6)
    close(got, norm.reference.rms_norm(x, weight, 1e-6), dtype)
    assert not got[0].any()


@DTYPES
@pytest.mark.parametrize("shape", WIDTHS, ids=ids)
def test_the_sum_and_its_norm_are_those_of_two_passes(shape, dtype, device):
    from ninfer_kernels.norm import gpu

    x, delta, weight = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype, seed=1), randn(shape[-1], seed=2)
    expected, got = x.clone(), x.clone().to(device)
    normed = norm.reference.add_rms_norm(expected, delta, weight, 1e-6)
    close(gpu.add_rms_norm(got, delta.to(device), weight.to(device), 1e-6), normed, dtype)
    assert torch.equal(got.cpu(), expected)
    assert torch.equal(expected, x + delta)


@DTYPES
@pytest.mark.parametrize("shape", HEADS, ids=ids)
def test_heads_of_a_stacked_projection_are_normed_in_place(shape, dtype, device):
    from ninfer_kernels.norm import gpu

    T, H, D = shape
    stacked, weight = randn(T, H + 3, D, dtype=dtype), randn(H, D, seed=1)
    expected = norm.reference.head_rms_norm(stacked[:, 1 : 1 + H], weight, 1e-6)
    close(gpu.head_rms_norm(stacked.to(device)[:, 1 : 1 + H], weight.to(device), 1e-6), expected, dtype)


@DTYPES
@pytest.mark.parametrize("shape", HEADS, ids=ids)
def test_the_gated_norm_equals_its_reference(shape, dtype, device):
    from ninfer_kernels.norm import gpu

    T, H, D = shape
    x, weight = randn(T, H, D), randn(D, seed=1)
    gate = randn(T, H + 2, D, dtype=dtype, seed=2)
    got = gpu.gated_rms_norm(x.to(device), gate.to(device)[:, 2:], weight.to(device), 1e-6)
    close(got, norm.reference.gated_rms_norm(x, gate[:, 2:], weight, 1e-6), dtype)


@DTYPES
@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("shape", [(1, 6, 256), (5, 3, 32), (70, 1, 8)], ids=ids)
def test_rotation_equals_its_reference_with_and_without_the_norm(shape, share, dtype, device):
    from ninfer_kernels.rope import gpu

    T, H, D = shape
    stacked, weight = randn(T, H + 2, D, dtype=dtype), randn(H, D, seed=1)
    cos, sin = angles(T, int(D * share))
    view, on = stacked.to(device)[:, :H], (cos.to(device), sin.to(device))
    close(gpu.rotate(view, *on), rope.reference.rotate(stacked[:, :H], cos, sin), dtype)
    got = gpu.norm_rotate(view, weight.to(device), 1e-6, *on)
    expected = rope.reference.norm_rotate(stacked[:, :H], weight, 1e-6, cos, sin)
    # a norm that rounds the other way moves both elements of a pair
    torch.testing.assert_close(got.cpu(), expected, rtol=2 * TOLERANCE[dtype][0], atol=4 * TOLERANCE[dtype][0])


# the first and the last an fp32 number holds, where a fast sine is a wrong one, those of long contexts
POSITIONS = [0, 1, 63, 105_615, 131_071, (1 << 20) - 1, 1 << 20, (1 << 24) - 1]
THIRDS = [0, 1, 2]


def turns(pairs, theta):
    """Frequencies, and the axis of each."""
    return rope.frequencies.plain(2 * pairs, theta), torch.tensor((THIRDS * pairs)[:pairs])


def same_angles(got, expected, factor=1.0):
    """To a few ulp of numbers up to ``factor``: what rounds an angle at a million is 0.06 of a radian."""
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype is torch.float32 and mine.is_contiguous()
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=4 * 2**-24 * factor)


@pytest.mark.parametrize("T", [1, 3, 65])
@pytest.mark.parametrize(("pairs", "theta"), [(32, 1e7), (64, 5e5), (1, 1e4), (10, 1e4)], ids=str)
def test_angles_of_positions_equal_their_reference(T, pairs, theta, device):
    from ninfer_kernels.rope import gpu

    positions = torch.tensor((POSITIONS * 9)[-T:])
    frequencies, _ = turns(pairs, theta)
    got = gpu.rotation(positions.to(device), frequencies.to(device))
    expected = rope.reference.rotation(positions, frequencies)
    same_angles(got, expected)
    assert [x.shape for x in got] == [(T, 1, 2 * pairs), (T, 1, pairs)]
    exact = (positions.float()[:, None] * frequencies).double()
    same_angles(got, (exact.cos().float().repeat(1, 2)[:, None], exact.sin().float()[:, None]))


@pytest.mark.parametrize("pairs", [32, 11, 1])
@pytest.mark.parametrize("factor", [1.0, 1.1386294])
@pytest.mark.parametrize("kind", ["axes", "transposed", "one for all", "fp32"])
def test_angles_on_axes_equal_their_reference(kind, factor, pairs, device):
    from ninfer_kernels.rope import gpu

    frequencies, axes = turns(pairs, 1e7)
    one = torch.tensor(POSITIONS)
    positions = {
        "axes": torch.stack((one, one.flip(0), one.roll(3))),
        "transposed": torch.stack((one, one.flip(0), one.roll(3)), dim=1).t(),
        "one for all": one.expand(3, -1),
        "fp32": rope.interpolated(one, 100, 4.0).expand(3, -1),
    }[kind]
    got = gpu.axis_rotation(positions.to(device), frequencies.to(device), axes.to(device), factor)
    same_angles(got, rope.reference.axis_rotation(positions, frequencies, axes, factor), factor)


@pytest.mark.parametrize(
    "positions", [torch.empty(3, 0, dtype=torch.int64), torch.arange(4).expand(3, -1)], ids=["T0", "T4"]
)
def test_tables_the_kernel_cannot_read_and_no_positions_are_left_to_torch(positions, device, monkeypatch):
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    wide = rope.frequencies.plain(16, 1e4).repeat_interleave(2).to(device)
    axes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1], device=device)
    where = positions.to(device)
    for got, expected in (
        (rope.rotation(where[0], wide[::2]), rope.reference.rotation(positions[0], wide.cpu()[::2])),
        (
            rope.axis_rotation(where, wide[::2], axes),
            rope.reference.axis_rotation(positions, wide.cpu()[::2], axes.cpu()),
        ),
    ):
        same_angles(got, expected)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 17), (3, 1024), (65, 1500)], ids=ids)
def test_swiglu_equals_its_reference(shape, dtype, device):
    from ninfer_kernels.activation import gpu

    T, N = shape
    x = randn(T, 2 * N, dtype=dtype, scale=8.0)
    x[0, 0], x[0, N - 1] = 100.0, -100.0  # past where an exponential overflows
    close(gpu.swiglu(x.to(device)), activation.reference.swiglu(x), dtype)


@DTYPES
@pytest.mark.parametrize("shape", HEADS, ids=ids)
def test_the_sigmoid_gate_equals_its_reference_for_a_view(shape, dtype, device):
    from ninfer_kernels.activation import gpu

    T, H, D = shape
    x, gate = randn(T, H, D, dtype=dtype), randn(T, 2 * H, D, dtype=dtype, seed=1, scale=30.0)
    got = gpu.sigmoid_gate(x.to(device), gate.to(device)[:, H:])
    close(got, activation.reference.sigmoid_gate(x, gate[:, H:]), dtype)


@pytest.mark.parametrize("gate_shape", [(5, 1), (1, 1300), (5, 1300)], ids=ids)
def test_a_gate_spreads_over_what_it_gates(gate_shape, device):
    from ninfer_kernels.activation import gpu

    x, gate = randn(5, 1300), randn(*gate_shape, seed=1)
    got = gpu.sigmoid_gate(x.to(device), gate.to(device))
    close(got, activation.reference.sigmoid_gate(x, gate), torch.float32)


def test_what_the_kernels_cannot_read_is_left_to_torch():
    norm_gpu = pytest.importorskip("ninfer_kernels.norm.gpu")
    activation_gpu = pytest.importorskip("ninfer_kernels.activation.gpu")
    turned = randn(4, 6).t()
    assert norm_gpu.serves(randn(4, 6)) and not norm_gpu.serves(turned)
    assert not norm_gpu.serves(randn(0, 6)) and not norm_gpu.serves(randn(1, (1 << 14) + 1))
    assert activation_gpu.serves(randn(4, 6)) and not activation_gpu.serves(randn(2, 2, 2, 2))


def test_a_nan_shows_where_it_is(device):
    from ninfer_kernels.norm import gpu

    x = randn(3, 40)
    x[1, 7] = float("nan")
    out = gpu.rms_norm(x.to(device), torch.ones(40, device=device), 1e-6)
    assert out.isnan().any(-1).tolist() == [False, True, False]


X, WEIGHT = randn(5, 40), randn(40, seed=2)
STACK, HEAD_WEIGHT = X.view(5, 5, 8), randn(5, 8, seed=3)
CALLS = [
    (norm, "rms_norm", (X, WEIGHT, 1e-6)),
    (norm, "add_rms_norm", (X, randn(5, 40, seed=1), WEIGHT, 1e-6)),
    (norm, "head_rms_norm", (STACK, HEAD_WEIGHT, 1e-6)),
    (norm, "gated_rms_norm", (STACK, randn(5, 5, 8, seed=1), WEIGHT[:8], 1e-6)),
    (rope, "rotation", (torch.arange(5), WEIGHT[:4])),
    (rope, "axis_rotation", (torch.arange(15).view(3, 5), WEIGHT[:4], torch.tensor([0, 1, 2, 0]), 1.5)),
    (rope, "rotate", (STACK, *angles(5, 4))),
    (rope, "norm_rotate", (STACK, HEAD_WEIGHT, 1e-6, *angles(5, 4))),
    (activation, "swiglu", (X,)),
    (activation, "sigmoid_gate", (X, randn(5, 1, seed=1))),
]


@pytest.mark.parametrize(("module", "name", "given"), CALLS, ids=[call[1] for call in CALLS])
def test_routes_ask_the_kernels_where_they_can_be_launched(module, name, given, device, monkeypatch):
    monkeypatch.setattr("ninfer_kernels.device.launches", lambda x: True)
    gpu = pytest.importorskip(f"{module.__name__}.gpu")
    kernel, asked = getattr(gpu, name), []
    monkeypatch.setattr(gpu, name, lambda *arguments: asked.append(name) or kernel(*arguments))
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in copies]
    got = getattr(module, name)(*moved)
    got = tuple(x.cpu() for x in got) if isinstance(got, tuple) else got.cpu()
    assert asked == [name]
    expected = getattr(module.reference, name)(*(v.clone() if isinstance(v, torch.Tensor) else v for v in given))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
