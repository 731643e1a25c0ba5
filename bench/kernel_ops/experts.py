"""The mixture of experts: whole layers, and its launches one by one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ninfer_kernels import moe
from ninfer_kernels.activation.reference import swiglu
from ninfer_kernels.linear.reference import linear
from ninfer_kernels.moe import Experts, PackedExperts, few_blocks, many, many_blocks
from ninfer_kernels.tiled_linear import FORMATS, TiledLinear
from ninfer_kernels.tiled_linear.blocks import random_tiles
from ninfer_kernels.tiled_linear.tiles import TILE_ROWS, Tiles

from .case import MIXED, Case, Inputs, Result, Sizes, randn, sized
from .matrices import tuned

TESTS, PACKED_TESTS = "test_moe_gpu.py", "test_moe_packed.py"
CHECKED = (
    16  # tokens: the definition goes through the experts of each, and scores of some of very many are nearly equal
)
FEW = 16  # tokens up to which experts are not shared
PACKED = (("q4_g64", "q5_g64"), ("q4_g64", "q6_g64"), ("nvfp4", "nvfp4"), ("fp8_row", "fp8_row"))
"""Formats of gate and up, and of down, as checkpoints have them."""


def cases(sizes: Sizes) -> Iterator[Case]:
    m = sizes.sparse
    N, E, C = m.hidden_size, m.num_experts or 0, m.num_experts_per_tok or 0
    F, shared = m.moe_intermediate_size or 0, m.shared_expert_intermediate_size or 0
    for T in sizes.mixed:
        yield layer(sizes, T)
    for formats in PACKED:
        for T in sizes.mixed[:: 2 if formats == PACKED[0] else len(sizes.mixed)]:
            yield packed_layer(sizes, T, *formats)
    yield chosen(sizes)
    yield added(sizes)
    inner = {"N": N, "F": F, "F_SHARED": shared, "C": C}
    yield tuned(sizes, few_blocks.CHOOSE, {"N": N, "E": E, "C": C}, TESTS, few_choose)
    yield tuned(sizes, few_blocks.GATE_UP, inner, TESTS, few_gate_up)
    yield tuned(sizes, few_blocks.DOWN, inner, TESTS, few_down)
    for BM in (64, 128):
        shape = {"N": N, "F": F, "BM": BM, "bytes": sizes.dtype.itemsize}
        yield tuned(sizes, many_blocks.GATE_UP, shape, TESTS, many_gate_up)
        yield tuned(sizes, many_blocks.DOWN, shape, TESTS, many_down)


def layer(sizes: Sizes, T: int) -> Case:
    """``T`` tokens through the router, their experts and the shared one."""
    m = sizes.sparse
    N, C, F = m.hidden_size, m.num_experts_per_tok or 0, m.moe_intermediate_size or 0
    shared = m.shared_expert_intermediate_size or 0

    def moved(inputs: Inputs, result: Result) -> int:
        """Every expert once that a token goes to."""
        x, experts = inputs
        _, ids = moe.route(x.float() @ experts.scores[:-1].t(), C)
        each = (experts.gate_up[0].nbytes + experts.down[0].nbytes) * ids.unique().numel()
        return each + sized((experts.scores, experts.shared_gate_up, experts.shared_down, x, result))

    return Case(
        op="moe.sparse", shape=f"35b-a3b-T{T}", tests=TESTS, tolerance=MIXED, moved=moved,
        make=lambda generator: (randn(generator, T, N, dtype=sizes.dtype), mixture(sizes, generator)),
        run=lambda inputs: moe.sparse(*inputs, C),
        reference=lambda inputs: moe.reference.sparse(inputs[0][:CHECKED], inputs[1], C),
        compared=lambda inputs, result: result[:CHECKED],
        flops=6 * T * N * (C * F + shared) if T > FEW else 0,
    )  # fmt: skip


def packed_layer(sizes: Sizes, T: int, first: str, second: str) -> Case:
    """The same where experts stay as they are stored; the shared one in eight bits."""
    m = sizes.sparse
    E, C = m.num_experts or 0, m.num_experts_per_tok or 0
    N, F, shared = (
        -(-size // TILE_ROWS) * TILE_ROWS
        for size in (m.hidden_size, m.moe_intermediate_size or 0, m.shared_expert_intermediate_size or 0)
    )

    def make(generator: torch.Generator) -> Inputs:
        def tiles(name: str, rows: int, columns: int) -> Tiles:
            return random_tiles(FORMATS[name], rows, columns, generator.device, generator)

        router, score = (randn(generator, rows, N, dtype=torch.bfloat16, scale=N**-0.5).float() for rows in (E, 1))
        up, down = TiledLinear(tiles("q8_g32", 2 * shared, N)), TiledLinear(tiles("q8_g32", N, shared))
        held = PackedExperts.of(router, score, tiles(first, 2 * E * F, N), tiles(second, E * N, F), up, down, C)
        return randn(generator, T, N, dtype=sizes.dtype), held, up, down

    def moved(inputs: Inputs, result: Result) -> int:
        """Every expert once that a token goes to."""
        x, held, up, down = inputs
        _, ids = moe.route(x.float() @ held.scores[:-1].t(), C)
        each = (held.gate_up.tiles.nbytes + held.down.tiles.nbytes) // E * ids.unique().numel()
        return each + sized((held.scores, up, down, x, result))

    return Case(
        op="moe.sparse", shape=f"35b-a3b-{first}-{second}-T{T}", tests=PACKED_TESTS, tolerance=MIXED, make=make,
        moved=moved, run=lambda inputs: moe.sparse(*inputs[:2], C),
        reference=lambda inputs: moe.reference.sparse(inputs[0][:CHECKED], inputs[1], C),
        compared=lambda inputs, result: result[:CHECKED],
        flops=6 * T * N * (C * F + shared) if T > FEW else 0,
    )  # fmt: skip


def chosen(sizes: Sizes) -> Case:
    """Many tokens routed and sorted by expert: six launches."""
    m, T = sizes.sparse, sizes.mixed[-1]
    N, C = m.hidden_size, m.num_experts_per_tok or 0

    def run(inputs: Inputs) -> many.Chosen:
        x, experts = inputs
        return many.choose(x, experts, C, many_blocks.tile_rows(x))

    def reference(inputs: Inputs) -> Result:
        x, experts = inputs
        return by_expert(*routed(x[:CHECKED], experts, C))

    def compared(inputs: Inputs, result: Result) -> Result:
        made = many.Chosen(*result)
        owners = torch.searchsorted(made.ends.long(), made.places[:CHECKED].long(), right=True)
        return by_expert(made.shares[:CHECKED], owners)

    return Case(
        op="moe.many_choose", shape=f"35b-a3b-T{T}", tests=TESTS, tolerance=1e-4, run=run, reference=reference,
        make=lambda generator: (randn(generator, T, N, dtype=sizes.dtype), mixture(sizes, generator)),
        compared=compared, moved=lambda inputs, result: inputs[0].nbytes + inputs[1].scores.nbytes + 12 * T * C,
    )  # fmt: skip


def added(sizes: Sizes) -> Case:
    """What every token is told, summed by its shares."""
    m, T = sizes.sparse, sizes.mixed[-1]
    N, C = m.hidden_size, m.num_experts_per_tok or 0

    def make(generator: torch.Generator) -> Inputs:
        x = randn(generator, T, N, dtype=sizes.dtype)
        sorted_ = many.choose(x, mixture(sizes, generator), C, many_blocks.tile_rows(x))
        return randn(generator, T * C, N, dtype=sizes.dtype), randn(generator, T, N, dtype=sizes.dtype), sorted_

    def reference(inputs: Inputs) -> Tensor:
        said, said_shared, made = inputs
        shares = made.shares[:CHECKED, :, None]
        told = torch.cat((said[made.places[:CHECKED].long()], said_shared[:CHECKED, None]), 1)
        return (told.float() * shares).sum(1).to(said.dtype)

    def moved(inputs: Inputs, result: Result) -> int:
        said, said_shared, made = inputs
        return sized((said, said_shared, made.shares, made.places, result))

    return Case(
        op="moe.many_add", shape=f"35b-a3b-T{T}", tests=TESTS, tolerance=MIXED, make=make, moved=moved,
        run=lambda inputs: many.add_up(*inputs), reference=reference,
        compared=lambda inputs, result: result[:CHECKED],
    )  # fmt: skip


def mixture(sizes: Sizes, generator: torch.Generator) -> Experts:
    """A layer whose router was stored in bf16, as published ones are."""
    m = sizes.sparse
    E, N = m.num_experts or 0, m.hidden_size
    F, shared = m.moe_intermediate_size or 0, m.shared_expert_intermediate_size or 0

    def made(*size: int, dtype: torch.dtype = sizes.dtype) -> Tensor:
        return randn(generator, *size, dtype=dtype, scale=size[-1] ** -0.5)

    router, score = (made(rows, N, dtype=torch.bfloat16).float() for rows in (E, 1))
    return Experts.of(router, score, made(E, 2 * F, N), made(E, N, F), made(2 * shared, N), made(N, shared))


# definitions of the launches that a search times


def routed(x: Tensor, experts: Experts, k: int) -> tuple[Tensor, Tensor]:
    """Shares [T, k + 1], the shared expert's last, and ids [T, k]."""
    scores = x.float() @ experts.scores.t()
    shares, ids = moe.reference.route(scores[:, :-1], k)
    return torch.cat((shares, scores[:, -1:].sigmoid()), 1), ids


def by_expert(shares: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """In the order of ids."""
    ids, order = ids.sort(1)
    return torch.cat((shares[:, :-1].gather(1, order), shares[:, -1:]), 1), ids


def few_choose(inputs: Inputs) -> Tensor:
    x, experts, _, ids, *_ = inputs
    return by_expert(*routed(x, experts, ids.shape[1] - 1))[0]


def few_gate_up(inputs: Inputs) -> Tensor:
    x, experts, *_ = inputs
    return torch.cat([swiglu(linear(x, matrix)) for matrix in experts.gate_up])


def few_down(inputs: Inputs) -> Tensor:
    _, experts, shares, _, h, _ = inputs
    F, J = experts.down.shape[2], experts.shared_down.shape[1]
    said = [
        *(linear(h[c : c + 1, :F], matrix) for c, matrix in enumerate(experts.down)),
        linear(h[-1:, :J], experts.shared_down),
    ]
    return (torch.cat(said).float() * shares[0][:, None]).sum(0, keepdim=True).to(h.dtype)


def many_gate_up(inputs: Inputs) -> Tensor:
    x, experts, made, *_ = inputs
    rows = [swiglu(linear(x[made.tokens[a:b].long()], experts.gate_up[e])) for e, a, b in places(made)]
    return torch.cat(rows)


def many_down(inputs: Inputs) -> Tensor:
    _, experts, made, _, h, _ = inputs
    return torch.cat([linear(h[a:b], experts.down[e]) for e, a, b in places(made)])


def places(made: many.Chosen) -> list[tuple[int, int, int]]:
    """Of every expert its first place and the one after its last."""
    ends = made.ends.tolist()
    return list(zip(range(len(ends)), [0, *ends], ends, strict=False))
