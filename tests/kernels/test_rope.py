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
