"""Gated DeltaNet: rounds with a tape, the fold, prompts in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ninfer_kernels import gdn
from ninfer_qwen35.config import Gdn

from .case import MIXED, Case, Inputs, Result, Sizes, gains, randn, sized

TESTS = "test_gdn_gpu.py"
STATE = torch.float32


def cases(sizes: Sizes) -> Iterator[Case]:
    few, many = 1, sizes.rows
    for name in sizes.models:
        for R, W in ((few, 1), (many, 1), *((few, W) for W in sizes.widths)):
            yield step(sizes, name, R, W)
    for name, R, W in (("27b", few, sizes.widths[0]), ("27b", many, 1), ("35b-a3b", few, sizes.widths[0])):
        yield fold(sizes, name, R, W)
        yield last(sizes, name, R, W)
    for name, T in (("27b", sizes.chunk), ("27b", sizes.long), ("35b-a3b", sizes.long)):
        yield prefill(sizes, name, T)


def step(sizes: Sizes, name: str, R: int, W: int) -> Case:
    """One layer of a round: ``R`` rows of ``W`` columns, whose states stay until the fold."""
    g = sizes.models[name].gdn

    def run(inputs: Inputs) -> Tensor:
        return gdn.step(*inputs, gdn.Tape.of(1))

    def moved(inputs: Inputs, result: Result) -> int:
        return once(inputs) + sized(result) + record_bytes(g, R * W, sizes.dtype)

    return Case(
        op="gdn.step", shape=f"{name}-R{R}-W{W}", tests=TESTS, tolerance=MIXED, moved=moved, run=run,
        make=lambda generator: layer_inputs(g, sizes.dtype, R, W, generator),
        reference=lambda inputs: gdn.reference.step(*inputs, gdn.Tape.of(1)),
    )  # fmt: skip


def fold(sizes: Sizes, name: str, R: int, W: int) -> Case:
    """The states of all layers over all that a round saw."""
    model = sizes.models[name]
    g, layers = model.gdn, len(model.gdn_layers)

    def make(generator: torch.Generator) -> Inputs:
        made = [layer_inputs(g, sizes.dtype, R, W, generator) for _ in range(layers)]
        parts = gdn.Parts([x[3].histories[0] for x in made], [x[3].states[0] for x in made])
        tape, rows, kept = gdn.Tape.of(layers), made[0][5], torch.full((R,), W, device=generator.device)
        for at, (mixed, ab, layer, *_) in enumerate(made):
            gdn.step(mixed, ab, layer, parts, at, rows, tape)
        return tape, parts, rows, kept, made

    def run(inputs: Inputs) -> Result:
        tape, parts, rows, kept, _ = inputs
        gdn.fold(tape, parts, rows, kept)
        return *parts.states, *parts.histories

    def reference(inputs: Inputs) -> Result:
        _, parts, rows, kept, made = inputs
        tape = gdn.Tape.of(layers)
        for at, (mixed, ab, layer, *_) in enumerate(made):
            gdn.reference.step(mixed, ab, layer, parts, at, rows, tape)
        gdn.reference.fold(tape, parts, rows, kept)
        return *parts.states, *parts.histories

    def moved(inputs: Inputs, result: Result) -> int:
        parts = inputs[1]
        kept = 2 * R * sum(part[0].nbytes for part in (*parts.states, *parts.histories))
        return kept + layers * record_bytes(g, R * W, sizes.dtype)

    return Case(
        op="gdn.fold", shape=f"{name}-L{layers}-R{R}-W{W}", tests=TESTS, tolerance=MIXED,
        make=make, run=run, reference=reference, moved=moved,
    )  # fmt: skip


def last(sizes: Sizes, name: str, R: int, W: int) -> Case:
    """The hidden rows of the last tokens of all rows, all that a round saw kept."""
    N = sizes.models[name].hidden_size

    def make(generator: torch.Generator) -> Inputs:
        rows = gdn.Rows(range(0, R * W + 1, W), range(R), generator.device)
        assert rows.on_device.slots.numel()
        x, part = (randn(generator, size, N, dtype=sizes.dtype) for size in (R * W, R))
        return x, part, rows, torch.full((R,), W, device=generator.device)

    def run(inputs: Inputs) -> Result:
        gdn.keep_last(*inputs)
        return inputs[1]  # type: ignore[no-any-return]

    def reference(inputs: Inputs) -> Result:
        gdn.reference.keep_last(*inputs)
        return inputs[1]  # type: ignore[no-any-return]

    return Case(
        op="gdn.keep_last", shape=f"{name}-R{R}-W{W}", tests=TESTS, tolerance=0.0, make=make, run=run,
        reference=reference, moved=lambda inputs, result: 2 * sized(result) + 4 * inputs[3].nbytes,
    )  # fmt: skip


def prefill(sizes: Sizes, name: str, T: int) -> Case:
    """One layer over ``T`` tokens of a prompt, its state advanced in place."""
    g = sizes.models[name].gdn

    def make(generator: torch.Generator) -> Inputs:
        made = layer_inputs(g, sizes.dtype, 1, T, generator)
        assert made[5].chunks.firsts.numel()  # uploaded here, where nothing is being recorded
        return made

    def run(inputs: Inputs) -> Result:
        return gdn.step(*inputs), inputs[3].states[0], inputs[3].histories[0]

    def reference(inputs: Inputs) -> Result:
        return gdn.reference.step(*inputs), inputs[3].states[0], inputs[3].histories[0]

    return Case(
        op="gdn.prefill", shape=f"{name}-T{T}", tests=TESTS, tolerance=MIXED, make=make, run=run, reference=reference,
        # the state goes in as it comes out
        moved=lambda inputs, result: once(inputs) + sized(result), flops=chunk_flops(g, T),
    )  # fmt: skip


def layer_inputs(g: Gdn, dtype: torch.dtype, R: int, W: int, generator: torch.Generator) -> Inputs:
    """What ``gdn.step`` takes of a layer that forgets as trained ones do; its inputs are parts of one projection."""
    H, C, T, device = g.value_heads, g.channels, R * W, generator.device
    stack = randn(generator, T, C + g.value_width + 2 * H, dtype=dtype)
    layer = gdn.Layer(
        key_heads=g.key_heads, value_heads=H, key_dim=g.key_dim, value_dim=g.value_dim,
        convolution=randn(generator, g.taps, C, dtype=torch.float32, scale=0.5),
        a_log=torch.empty(H, device=device).uniform_(0, 2.7, generator=generator),
        dt_bias=torch.empty(H, device=device).uniform_(-6, -2, generator=generator),
        norm=gains(generator, g.value_dim), eps=1e-6,
    )  # fmt: skip
    history = randn(generator, R, g.taps - 1, C, dtype=dtype)
    state = randn(generator, R, H, g.value_dim, g.key_dim, dtype=STATE, scale=0.3)
    rows = gdn.Rows(range(0, T + 1, W), range(R), device)
    assert rows.on_device.slots.numel()
    mixed, ab = stack.split((C + g.value_width, 2 * H), dim=-1)
    return mixed, ab, layer, gdn.Parts([history], [state]), 0, rows


def once(inputs: Inputs) -> int:
    """Bytes of a layer's inputs, its weights and its states."""
    mixed, ab, layer, parts, *_ = inputs
    weights = (layer.convolution, layer.a_log, layer.dt_bias, layer.norm)
    return sized((mixed, ab, weights, parts.histories, parts.states))


def record_bytes(g: Gdn, T: int, dtype: torch.dtype) -> int:
    """What a step keeps for the fold: inputs of the convolution, keys, values, decay and strength."""
    return T * ((g.channels + g.value_width) * dtype.itemsize + 4 * (g.key_width + 2 * g.value_heads))


def chunk_flops(g: Gdn, T: int) -> int:
    """Of the products over chunks of 64: keys and queries with keys per key head; per value head keys and queries with
    the state, the inverse and what is within with values, and the state's update. The inverse itself is left out."""
    L, K, V = 64, g.key_dim, g.value_dim
    return 2 * T * (g.key_heads * 2 * L * K + g.value_heads * (3 * K * V + 2 * L * V))
