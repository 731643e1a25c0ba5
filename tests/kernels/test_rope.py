"""Rotary embedding against its definition, and its frequencies against transformers'."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ninfer_kernels import rope
from ninfer_kernels.rope import frequencies, routes

SHAPES = [(0, 2, 8), (1, 12, 64), (7, 3, 6), (64, 5, 128), (65, 5, 20), (130, 1, 2)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture(params=["compiled", "torch"])
def route(request, monkeypatch):
    """Both routes: the compiled one, and the one that serves where numba is missing."""
    if request.param == "torch":
        monkeypatch.setattr(routes, "_compiled", lambda: None)
    else:
        assert routes._compiled() is not None


@pytest.mark.parametrize(("T", "H", "D"), SHAPES, ids=[f"T{t}-H{h}-D{d}" for t, h, d in SHAPES])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_rotate_equals_its_reference_on_a_view_of_a_stack(T, H, D, dtype, route):
    stack = torch.randn(T, (H + 2) * D, generator=torch.Generator().manual_seed(T)).to(dtype)
    x = stack.view(T, H + 2, D)[:, :H]
    kept = stack.clone()
    cos, sin = rope.rotation(torch.arange(1000, 1000 + T), frequencies.plain(D, 1e4))
    out = rope.rotate(x, cos, sin)
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert torch.equal(stack, kept)
    torch.testing.assert_close(out, rope.reference.rotate(x, cos, sin), rtol=TOLERANCE[dtype], atol=2e-6)


def test_a_pair_turns_by_position_times_frequency():
    D, position = 6, 5
    frequency = frequencies.plain(D, 100.0)
    x = torch.randn(1, 1, D, dtype=torch.float64)
    out = rope.reference.rotate(x.float(), *rope.rotation(torch.tensor([position]), frequency)).double()
    pair = torch.complex(x[0, 0, :3], x[0, 0, 3:]) * torch.exp(1j * position * frequency.double())
    torch.testing.assert_close(out[0, 0], torch.cat((pair.real, pair.imag)), atol=1e-6, rtol=1e-6)


def test_position_zero_changes_nothing():
    x = torch.randn(1, 4, 32)
    assert torch.equal(rope.rotate(x, *rope.rotation(torch.tensor([0]), frequencies.plain(32, 1e4))), x)


SCALINGS = {
    "plain": ({"rope_type": "default"}, lambda f: f),
    "linear": ({"rope_type": "linear", "factor": 3.0}, lambda f: frequencies.linear(f, 3.0)),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        lambda f: frequencies.llama3(f, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=512),
    ),
}


@pytest.mark.parametrize("kind", list(SCALINGS))
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 1e4), (128, 5e5), (20, 1e5)])
def test_angles_equal_transformers_bit_for_bit(kind, head_dim, theta):
    parameters, scaled = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=8192,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    positions = torch.tensor([0, 1, 7, 511, 8191, 100_000])
    cos_ref, sin_ref = LlamaRotaryEmbedding(config)(torch.empty(1, dtype=torch.float32), positions[None])
    cos, sin = rope.rotation(positions, scaled(frequencies.plain(head_dim, theta)))
    assert torch.equal(cos[:, 0], cos_ref[0])
    assert torch.equal(sin[:, 0], sin_ref[0, :, : head_dim // 2])


def test_divided_frequencies_take_one_factor_each():
    plain = frequencies.plain(8, 1e4)
    out = frequencies.divided(plain, torch.tensor([1.0, 2.0, 4.0, 8.0]))
    torch.testing.assert_close(plain / out, torch.tensor([1.0, 2.0, 4.0, 8.0]))


PARTIAL = [(0, 2, 8, 4), (1, 12, 64, 16), (7, 3, 6, 2), (64, 5, 256, 64), (65, 5, 20, 12)]


@pytest.mark.parametrize(("T", "H", "D", "R"), PARTIAL, ids=[f"T{t}-H{h}-D{d}-R{r}" for t, h, d, r in PARTIAL])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
def test_elements_past_the_rotated_ones_pass_through(T, H, D, R, dtype, route):
    stack = torch.randn(T, (H + 2) * D, generator=torch.Generator().manual_seed(T)).to(dtype)
    x = stack.view(T, H + 2, D)[:, :H]
    cos, sin = rope.rotation(torch.arange(1000, 1000 + T), frequencies.plain(R, 1e4))
    out = rope.rotate(x, cos, sin)
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert torch.equal(out[..., R:], x[..., R:])
    assert torch.equal(rope.reference.rotate(x, cos, sin)[..., R:], x[..., R:])
    torch.testing.assert_close(out, rope.reference.rotate(x, cos, sin), rtol=TOLERANCE[dtype], atol=2e-6)
    alone = rope.reference.rotate(x[..., :R], cos, sin)
    torch.testing.assert_close(out[..., :R], alone, rtol=TOLERANCE[dtype], atol=2e-6)


def test_angles_in_any_memory_layout_turn_alike(route):
    x = torch.randn(5, 2, 8)
    cos, sin = rope.rotation(torch.arange(5), frequencies.plain(8, 1e4))
    strided = sin.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(rope.rotate(x, cos, strided), rope.rotate(x, cos, sin))


def test_each_pair_turns_by_the_position_on_its_axis():
    frequency, axes = frequencies.plain(8, 100.0), torch.tensor([0, 1, 2, 0])
    positions = torch.tensor([[3, 4], [10, 0], [7, 7]])
    cos, sin = rope.axis_rotation(positions, frequency, axes, attention_factor=1.5)
    for t in range(2):
        for r in range(4):
            angle = float(positions[axes[r], t]) * frequency[r]
            torch.testing.assert_close(sin[t, 0, r], 1.5 * angle.sin())
            torch.testing.assert_close(cos[t, 0, [r, r + 4]], 1.5 * angle.cos().expand(2))


def test_equal_positions_on_every_axis_are_plain_rotary_embedding():
    frequency, positions = frequencies.plain(16, 1e7), torch.tensor([0, 5, 100_000])
    axes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    got = rope.axis_rotation(positions.expand(3, -1), frequency, axes)
    for one, other in zip(got, rope.rotation(positions, frequency), strict=True):
        assert torch.equal(one, other)


def test_interpolated_positions_leave_the_window_alone():
    positions = torch.tensor([0, 99, 100, 101, 108, 1000])
    expected = torch.tensor([0.0, 99.0, 100.0, 100.25, 102.0, 325.0])
    assert torch.equal(rope.interpolated(positions, 100, 4.0), expected)
    assert torch.equal(rope.interpolated(positions, 100, 1.0), positions.float())


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
@pytest.mark.parametrize(("theta", "original"), [(1e7, 262144), (1e6, 32768), (1e4, 2048)])
def test_yarn_equals_transformers(factor, theta, original):
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=int(original * factor),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        },
    )
    oracle = LlamaRotaryEmbedding(config)
    torch.testing.assert_close(
        frequencies.yarn(64, theta, factor=factor, original_context=original), oracle.inv_freq, rtol=3e-7, atol=0
    )
    assert frequencies.yarn_attention_factor(factor) == pytest.approx(oracle.attention_scaling, rel=1e-9)


def test_yarn_without_a_factor_is_plain():
    torch.testing.assert_close(frequencies.yarn(64, 1e7, factor=1.0, original_context=4096), frequencies.plain(64, 1e7))
    assert frequencies.yarn_attention_factor(1.0) == 1.0
