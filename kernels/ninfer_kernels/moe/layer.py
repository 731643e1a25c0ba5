"""The weights of one mixture, as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COUNTERS = 4096  # tokens of a launch for a few


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Legend: E experts, N width, F inner width, of the shared expert F'."""

    scores: Tensor  # [E + 1, N] fp32: of each expert, then the shared one's gate
    gate_up: Tensor  # [E, 2F, N], the gate's rows first
    down: Tensor  # [E, N, F]
    shared_gate_up: Tensor  # [2F', N]
    shared_down: Tensor  # [N, F']
    score_parts: Tensor  # [PARTS * rows, N] in the experts' type: ``scores`` as a sum of as many as it takes, padded
    parts: int
    arrived: Tensor  # [COUNTERS] int32, 0 between launches: scores of a token that are known

    @classmethod
    def of(
        cls, router: Tensor, shared_score: Tensor, gate_up: Tensor, down: Tensor, shared_gate_up: Tensor,
        shared_down: Tensor,
    ) -> Experts:  # fmt: skip
        """router: [E, N]; shared_score: [1, N]."""
        scores = torch.cat((router.float(), shared_score.float()))
        stack, parts = split(scores, gate_up.dtype)
        return cls(
            scores=scores, gate_up=gate_up, down=down, shared_gate_up=shared_gate_up, shared_down=shared_down,
            score_parts=stack, parts=parts, arrived=torch.zeros(COUNTERS, dtype=torch.int32, device=router.device),
        )  # fmt: skip


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
