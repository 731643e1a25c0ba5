"""The launches for many tokens: pairs sorted by expert on the device, and each expert's read together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ninfer_kernels.activation.gpu import swiglu
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2
from ninfer_kernels.tuning import Blocks

from .choose_kernel import carry_kernel, count_kernel, many_choose_kernel, place_kernel
from .layer import Experts, Scores
from .many_blocks import DOWN, GATE_UP, tile_rows
from .many_kernel import many_add_kernel, many_down_kernel, many_gate_up_kernel

COUNTED = 128  # pairs counted together


class Chosen(NamedTuple):
    """Who goes where. P = T * C places sorted by expert; M tiles, as many as there can be."""

    shares: Tensor  # [T, C + 1] fp32, the shared expert's last
    places: Tensor  # [T, C] int32 of each pair
    tokens: Tensor  # [P] int32 of each place
    ends: Tensor  # [E] int32, the places of an expert
    owners: Tensor  # [M] int32: the expert of a tile; E where there is none
    firsts: Tensor  # [M] int32 places


def choose(x_TN: Tensor, experts: Scores, k: int, tile: int) -> Chosen:
    """Route and sort, without the host."""
    T, E, device = x_TN.shape[0], experts.count, x_TN.device
    logits = scores(x_TN, experts)
    CP, EP = next_power_of_2(k), max(16, next_power_of_2(E))
    BP = max(COUNTED, CP)
    blocks, tiles = cdiv(T * CP, BP), T * k // tile + min(E, T * k)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    shares, ids = torch.empty(T, k + 1, dtype=torch.float32, device=device), ints(T, k + 1)
    counts, totals = ints(blocks, E), ints(E)
    out = Chosen(shares, ints(T, k), ints(T * k), ints(E), ints(tiles), ints(tiles))
    # a warp for two tokens: all that is said among the scores of one stays within it
    launch_kernel(
        many_choose_kernel, (cdiv(T, 2),),
        logits, shares, ids, logits.shape[1] // experts.parts, T,
        E=E, C=k, CP=CP, EP=EP, PARTS=experts.parts, BT=2, num_warps=1,
    )  # fmt: skip
    launch_kernel(count_kernel, (blocks,), ids, counts, T, E=E, C=k, CP=CP, EP=EP, BP=BP, num_warps=4)
    launch_kernel(carry_kernel, (cdiv(E, 8),), counts, totals, blocks, E=E, BB=512, BE=8, num_warps=4)
    launch_kernel(
        place_kernel, (blocks,),
        ids, counts, totals, out.tokens, out.places, out.ends, out.owners, out.firsts, T, tiles,
        E=E, C=k, CP=CP, EP=EP, BP=BP, BM=tile,
        TILES=next_power_of_2(cdiv(tiles, blocks)), num_warps=4,
    )  # fmt: skip
    return out


def scores(x_TN: Tensor, experts: Scores) -> Tensor:
    """fp32 [T, parts * rows]: what each part of the router says, products exact."""
    if x_TN.dtype is torch.float32 or x_TN.dtype is not experts.score_parts.dtype or not x_TN.is_cuda:
        return torch.mm(x_TN.float(), experts.score_parts.float().t())
    return torch.mm(x_TN, experts.score_parts.t(), out_dtype=torch.float32)


def gate_up(x_TN: Tensor, experts: Experts, chosen: Chosen, tile: int, blocks: Blocks | None = None) -> Tensor:
    """The inner row of every place, [P, F]."""
    P, F = chosen.tokens.shape[0], experts.down.shape[2]
    h = torch.empty(P, F, dtype=x_TN.dtype, device=x_TN.device)
    return gate_up_into(h, x_TN, experts.gate_up, chosen, tile, blocks)


def gate_up_into(h: Tensor, x_TN: Tensor, w: Tensor, chosen: Chosen, tile: int, blocks: Blocks | None = None) -> Tensor:
    """Those rows of h whose experts are among w [E, 2F, N]."""
    (E, F2, N), M = w.shape, chosen.owners.shape[0]
    blocks = blocks or GATE_UP.blocks(x_TN.device, N=N, F=F2 // 2, BM=tile, bytes=x_TN.itemsize)
    stack = TensorDescriptor.from_tensor(w.view(-1, N), [blocks["BI"], blocks["BN"]]) if blocks["DESC"] else w
    launch_kernel(
        many_gate_up_kernel, (M * cdiv(F2 // 2, blocks["BI"]),),
        x_TN, stack, chosen.tokens, chosen.owners, chosen.firsts, chosen.ends, h, x_TN.stride(0),
        N=N, F=F2 // 2, E=E, BM=tile, PRECISION="ieee", **blocks,
    )  # fmt: skip
    return h


def down(h: Tensor, experts: Experts, chosen: Chosen, tile: int, blocks: Blocks | None = None) -> Tensor:
    """What is said to every place, [P, N]."""
    said = torch.empty(len(h), experts.down.shape[1], dtype=h.dtype, device=h.device)
    return down_into(said, h, experts.down, chosen, tile, blocks)


def down_into(said: Tensor, h: Tensor, w: Tensor, chosen: Chosen, tile: int, blocks: Blocks | None = None) -> Tensor:
    """Those rows of ``said`` whose experts are among w [E, N, F]."""
    (E, N, F), M = w.shape, chosen.owners.shape[0]
    blocks = blocks or DOWN.blocks(h.device, N=N, F=F, BM=tile, bytes=h.itemsize)
    stack, rows, tail_rows = w, h, h
    if blocks["DESC"]:
        stack = TensorDescriptor.from_tensor(w.view(-1, F), [blocks["BN"], blocks["BI"]])
        rows = TensorDescriptor.from_tensor(h, [tile, blocks["BI"]])
        tail_rows = TensorDescriptor.from_tensor(h, [blocks["TAIL"], blocks["BI"]])
    launch_kernel(
        many_down_kernel, (M * cdiv(N, blocks["BN"]),),
        rows, tail_rows, stack, chosen.owners, chosen.firsts, chosen.ends, said,
        N=N, F=F, E=E, BM=tile, PRECISION="ieee", **blocks,
    )  # fmt: skip
    return said


def add_up(said: Tensor, said_shared: Tensor, chosen: Chosen) -> Tensor:
    """The shares of what every token is told, [T, N]."""
    (T, N), k = said_shared.shape, chosen.places.shape[1]
    y = torch.empty(T, N, dtype=said.dtype, device=said.device)
    BN = min(1024, max(16, next_power_of_2(N)))
    launch_kernel(
        many_add_kernel, (T, cdiv(N, BN)),
        said, said_shared, chosen.places, chosen.shares, y, N, C=k, CP=next_power_of_2(k), BN=BN, num_warps=4,
    )  # fmt: skip
    return y


def mix(x_TN: Tensor, experts: Experts, k: int) -> Tensor:
    """``reference.sparse`` for any number of tokens."""
    tile = tile_rows(x_TN)
    chosen = choose(x_TN, experts, k, tile)
    said = down(gate_up(x_TN, experts, chosen, tile), experts, chosen, tile)
    inner = swiglu(torch.mm(x_TN, experts.shared_gate_up.t()))
    return add_up(said, torch.mm(inner, experts.shared_down.t()), chosen)
