"""The weights of one mixture, as the kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_kernels.tiled_linear.tiles import TILE_ROWS, Tiles

COUNTERS = 4096  # tokens of a launch for a few
FEW_TOKENS = 16  # as many as the dense products take (``linear.gpu``); beyond it experts are shared, and tiles pay


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What chooses the experts. Legend: E experts, N width, F inner width, of the shared expert F'."""

    scores: Tensor  # [E + 1, N] fp32: of each expert, then the shared one's gate
    score_parts: Tensor  # [PARTS * rows, N] in the products' type: ``scores`` as a sum of as many as it takes, padded
    parts: int
    arrived: Tensor  # [COUNTERS] int32, 0 between launches: scores of a token that are known

    @property
    def count(self) -> int:
        return self.scores.shape[0] - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts(Scores):
    """Dense matrices."""

    gate_up: Tensor  # [E, 2F, N], the gate's rows first
    down: Tensor  # [E, N, F]
    shared_gate_up: Tensor  # [2F', N]
    shared_down: Tensor  # [N, F']

    @classmethod
    def of(
        cls, router: Tensor, shared_score: Tensor, gate_up: Tensor, down: Tensor, shared_gate_up: Tensor,
        shared_down: Tensor,
    ) -> Experts:  # fmt: skip
        """router: [E, N]; shared_score: [1, N]."""
        scores, stack, parts, arrived = scored(router, shared_score, gate_up.dtype)
        return cls(
            scores=scores, gate_up=gate_up, down=down, shared_gate_up=shared_gate_up, shared_down=shared_down,
            score_parts=stack, parts=parts, arrived=arrived,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackedStack:
    """Matrices of one shape, their rows one after the other in the tiles of one: each has tiles of its own."""

    tiles: Tiles
    count: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.count, self.tiles.rows // self.count, self.tiles.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedExperts(Scores):
    """Matrices as they are stored, in tiles. The shared expert's are operations of any form."""

    gate_up: PackedStack  # [E, 2F, N], the gate's rows first
    down: PackedStack  # [E, N, F]
    shared_gate_up: Callable[[Tensor], Tensor]  # [T, N] -> [T, 2F']
    shared_down: Callable[[Tensor], Tensor]  # [T, F'] -> [T, N]
    tickets: Tensor  # int32, 0 between launches: programs that are done with a part of a sum

    @classmethod
    def of(
        cls, router: Tensor, shared_score: Tensor, gate_up: Tiles, down: Tiles,
        shared_gate_up: Callable[[Tensor], Tensor], shared_down: Callable[[Tensor], Tensor], k: int,
    ) -> PackedExperts:  # fmt: skip
        """router: [E, N]; shared_score: [1, N]; ``k``: experts of a token. ValueError where an expert does not begin
        with a tile."""
        E, N = router.shape
        F = down.columns
        if (gate_up.rows, gate_up.columns, down.rows) != (2 * E * F, N, E * N) or not fits(N, F):
            raise ValueError(
                f"{gate_up.rows} x {gate_up.columns} and {down.rows} x {F} are not {E} experts of a width {N}; "
                f"widths must be multiples of {TILE_ROWS}"
            )
        # products are exact in bf16 (``split``)
        scores, stack, parts, arrived = scored(router, shared_score, torch.bfloat16)
        tiles = FEW_TOKENS * max(k * F, N) // TILE_ROWS
        return cls(
            scores=scores, gate_up=PackedStack(gate_up, E), down=PackedStack(down, E), shared_gate_up=shared_gate_up,
            shared_down=shared_down, score_parts=stack, parts=parts, arrived=arrived,
            tickets=torch.zeros(tiles, dtype=torch.int32, device=router.device),
        )  # fmt: skip


def fits(width: int, inner: int) -> bool:
    """Whether experts of these widths fill whole tiles."""
    return width % TILE_ROWS == 0 and inner % TILE_ROWS == 0


def scored(router: Tensor, shared_score: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, int, Tensor]:
    """``Scores`` of products in ``dtype``: scores, their parts, how many those are, counters."""
    scores = torch.cat((router.float(), shared_score.float()))
    return scores, *split(scores, dtype), torch.zeros(COUNTERS, dtype=torch.int32, device=router.device)


def split(scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """fp32 as a sum of matrices of ``dtype``, stacked, and how many: products with each are exact on tensor cores.

    Three bf16 hold every fp32; a router that was stored in bf16 is one.
    """
    rows = -scores.shape[0] % 8
    left = torch.cat((scores, scores.new_zeros(rows, scores.shape[1])))
    parts = []
    while not parts or (len(parts) < 3 and bool(left.any())):
        parts.append(left.to(dtype))
        left = left - parts[-1].float()
    return torch.cat(parts), len(parts)
