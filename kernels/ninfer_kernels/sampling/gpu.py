"""The launch of the draw on a GPU: one upload of the rows' settings, one download of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .kernel import KP, LEAST, K, candidates_kernel, draw_kernel
from .reference import TINY

CHUNK = 4096  # of the vocabulary, for one program


class Settings(NamedTuple):
    """One row's. ``temperature`` 0 is greedy; its log probabilities then are at temperature 1."""

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int
    position: int
    purpose: int


class Draws(NamedTuple):
    """On the device, rank order. A row without a finite best logit, or with a NaN, has token -1."""

    tokens: Tensor  # [R] int64
    ids: Tensor  # [R, K] int64, -1 where there are fewer candidates
    logprobs: Tensor  # [R, K] fp32: of the whole vocabulary, before truncation


def draw(logits: Tensor, rows: Sequence[Settings]) -> Draws:
    """One token per row of logits [R, V], any float: ``reference.support`` and ``reference.pick`` of its candidates."""
    R, V = logits.shape
    device = logits.device
    chunks = triton.cdiv(V, CHUNK)
    floats, ints = settings_tensors(rows, device)
    keys = torch.empty(R, chunks, K, dtype=torch.int64, device=device)
    peaks = torch.empty(R, chunks, dtype=torch.float32, device=device)
    sums = torch.empty_like(peaks)
    out = Draws(
        torch.empty(R, dtype=torch.int64, device=device),
        torch.empty(R, K, dtype=torch.int64, device=device),
        torch.empty(R, K, dtype=torch.float32, device=device),
    )
    temperatures = floats[:, 0].contiguous()
    candidates_kernel[(chunks, R)](
        logits, temperatures, keys, peaks, sums, V, logits.stride(0), chunks,
        BV=CHUNK, K=K, KP=KP, LEAST=LEAST, num_warps=8,
    )  # fmt: skip
    draw_kernel[(R,)](
        keys, peaks, sums, floats, ints, *out, chunks,
        BC=triton.next_power_of_2(chunks), BCK=triton.next_power_of_2(chunks * K), K=K, KP=KP, LEAST=LEAST, num_warps=4,
    )  # fmt: skip
    return out


def settings_tensors(rows: Sequence[Settings], device: torch.device) -> tuple[Tensor, Tensor]:
    """floats [R, 3] fp32 and ints [R, 5] int64 as ``draw_kernel`` reads them."""
    floats = [(max(row.temperature or 1.0, TINY), row.top_p, row.min_p) for row in rows]
    ints = [(_signed(row.seed), row.position, row.purpose, row.top_k, int(row.temperature == 0)) for row in rows]
    return (
        torch.tensor(floats, dtype=torch.float32, device=device),
        torch.tensor(ints, dtype=torch.int64, device=device),
    )


def _signed(seed: int) -> int:
    """The same 64 bits as a signed number."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
