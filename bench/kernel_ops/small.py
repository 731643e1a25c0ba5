"""Norms, rotary embedding, gated activations and the Hadamard rotation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ninfer_kernels import activation, hadamard, norm, rope
from ninfer_qwen35.config import Qwen35Config, interleaved_axes

from .case import ROUNDED, Case, Inputs, Sizes, gains, randn, sized

EPS = 1e-6
TESTS = "test_small_ops_gpu.py"


def cases(sizes: Sizes) -> Iterator[Case]:
    for name, model in sizes.models.items():
        # one row of the smaller model: what a launch costs
        for T in (1, sizes.rows, sizes.chunk) if model is sizes.dense else (1,):
            yield from norms(f"{name}-T{T}", T, model, sizes.dtype)
            yield from of_heads(f"{name}-T{T}", T, model, sizes.dtype)
    for T in (1, sizes.chunk):
        yield gated(f"27b-T{T}", T, sizes.dense, sizes.dtype)
        yield rotated(f"27b-T{T}", T, sizes.dense, sizes.dtype)
        yield turned(f"27b-T{T}", T, sizes.dense, sizes.dtype)
        yield angles_on_axes(f"27b-T{T}", T, sizes.dense)


def norms(shape: str, T: int, model: Qwen35Config, dtype: torch.dtype) -> Iterator[Case]:
    N = model.hidden_size

    def alone(generator: torch.Generator) -> Inputs:
        weight = gains(generator, N)
        return randn(generator, T, N, dtype=dtype), weight, weight.to(dtype)

    def added(generator: torch.Generator) -> Inputs:
        return *(randn(generator, T, N, dtype=dtype) for _ in "xd"), gains(generator, N)

    def by_torch(inputs: Inputs) -> Tensor:
        x, _, weight = inputs
        return F.rms_norm(x, (N,), weight, EPS)

    yield Case(
        op="norm.rms_norm", shape=shape, tests=TESTS, make=alone, tolerance=ROUNDED,
        run=lambda inputs: norm.rms_norm(inputs[0], inputs[1], EPS),
        reference=lambda inputs: norm.reference.rms_norm(inputs[0], inputs[1], EPS),
        moved=lambda inputs, result: 2 * inputs[0].nbytes + inputs[1].nbytes,
        beside={"torch": by_torch},
    )  # fmt: skip
    yield Case(
        op="norm.add_rms_norm", shape=shape, tests=TESTS, make=added, tolerance=ROUNDED,
        # what x holds afterwards is a result too
        run=lambda inputs: (norm.add_rms_norm(*inputs, EPS), inputs[0]),
        reference=lambda inputs: (norm.reference.add_rms_norm(*inputs, EPS), inputs[0]),
    )  # fmt: skip


def of_heads(shape: str, T: int, model: Qwen35Config, dtype: torch.dtype) -> Iterator[Case]:
    """What attention does to the heads of its projection, and the gated product of the feed-forward."""
    a = model.attention
    H, G, D, R = a.heads, a.kv_heads, a.head_dim, a.rotary_dim
    width = model.intermediate_size or model.shared_expert_intermediate_size or 0

    def turning(generator: torch.Generator) -> Inputs:
        """Queries and keys, neighbours in the stack."""
        stack = randn(generator, T, 2 * (H + G), D, dtype=dtype)
        return stack[:, : H + G], gains(generator, H + G, D), *angles(T, R, generator.device)

    def attended(generator: torch.Generator) -> Inputs:
        stack = randn(generator, T, 2 * (H + G), D, dtype=dtype)
        return randn(generator, T, H, D, dtype=dtype), stack[:, H + G : 2 * H + G]

    yield Case(
        op="rope.norm_rotate", shape=shape, tests=TESTS, make=turning, tolerance=ROUNDED,
        run=lambda inputs: rope.norm_rotate(*inputs[:2], EPS, *inputs[2:]),
        reference=lambda inputs: rope.reference.norm_rotate(*inputs[:2], EPS, *inputs[2:]),
    )  # fmt: skip
    yield Case(
        op="activation.sigmoid_gate", shape=shape, tests=TESTS, make=attended, tolerance=ROUNDED,
        run=lambda inputs: activation.sigmoid_gate(*inputs),
        reference=lambda inputs: activation.reference.sigmoid_gate(*inputs),
    )  # fmt: skip
    yield Case(
        op="activation.swiglu", shape=shape, tests=TESTS, tolerance=ROUNDED,
        make=lambda generator: (randn(generator, T, 2 * width, dtype=dtype),),
        run=lambda inputs: activation.swiglu(*inputs),
        reference=lambda inputs: activation.reference.swiglu(*inputs),
    )  # fmt: skip


def gated(shape: str, T: int, model: Qwen35Config, dtype: torch.dtype) -> Case:
    """The norm of each head of a delta rule, where it is a pass of its own."""
    H, D = model.gdn.value_heads, model.gdn.value_dim
    return Case(
        op="norm.gated_rms_norm", shape=shape, tests=TESTS, tolerance=ROUNDED,
        make=lambda generator: (*(randn(generator, T, H, D, dtype=dtype) for _ in "xg"), gains(generator, D)),
        run=lambda inputs: norm.gated_rms_norm(*inputs, EPS),
        reference=lambda inputs: norm.reference.gated_rms_norm(*inputs, EPS),
    )  # fmt: skip


def rotated(shape: str, T: int, model: Qwen35Config, dtype: torch.dtype) -> Case:
    """Queries for a storage that keeps its keys rotated."""
    H, D = model.attention.heads, model.attention.head_dim
    return Case(
        op="hadamard.rotate", shape=shape, tests="test_hadamard.py", tolerance=1e-6,
        make=lambda generator: (randn(generator, T, H, D, dtype=dtype),),
        run=lambda inputs: hadamard.rotate(*inputs),
        reference=lambda inputs: hadamard.reference.rotate(*inputs),
    )  # fmt: skip


def turned(shape: str, T: int, model: Qwen35Config, dtype: torch.dtype) -> Case:
    """Heads without a norm of their own, all of whose elements turn."""
    H, D = model.attention.heads + model.attention.kv_heads, model.attention.head_dim
    return Case(
        op="rope.rotate", shape=shape, tests=TESTS, tolerance=ROUNDED,
        make=lambda generator: (randn(generator, T, H, D, dtype=dtype), *angles(T, D, generator.device)),
        run=lambda inputs: rope.rotate(*inputs),
        reference=lambda inputs: rope.reference.rotate(*inputs),
    )  # fmt: skip


def angles_on_axes(shape: str, T: int, model: Qwen35Config) -> Case:
    """Cosines and sines of a step, which all its layers turn by."""
    a = model.attention

    def make(generator: torch.Generator) -> Inputs:
        first = torch.randint(1 << 18, (1,), generator=generator, device=generator.device)
        turns = rope.frequencies.plain(a.rotary_dim, 1e7).to(generator.device)
        axes = torch.tensor(interleaved_axes(a.rope.mrope_section), device=generator.device)
        return (first + torch.arange(T, device=generator.device)).expand(3, -1), turns, axes

    return Case(
        op="rope.axis_rotation", shape=shape, tests=TESTS, tolerance=1e-6, make=make,
        run=lambda inputs: rope.axis_rotation(*inputs),
        reference=lambda inputs: rope.reference.axis_rotation(*inputs),
        # one position on all axes
        moved=lambda inputs, result: 8 * T + sized(inputs[1:]) + sized(result),
    )  # fmt: skip


def angles(T: int, R: int, device: torch.device) -> tuple[Tensor, Tensor]:
    cos, sin = rope.rotation(torch.arange(T) * 3 + 5, rope.frequencies.plain(R, 1e7))
    return cos.to(device), sin.to(device)
