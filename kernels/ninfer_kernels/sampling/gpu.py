"""The launches of the draw on a GPU. What was drawn lies in one buffer, so that it comes down in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ninfer_kernels import pdl

from .draws import OUT, Draws, draws_in
from .kernel import KP, LEAST, K, candidates_kernel, count_kernel, draw_kernel
from .settings import NUMBERS, Settings, packed

CHUNK = 4096  # of the vocabulary, for one program


class Counted(NamedTuple):
    """What penalties are made of."""

    counts: Tensor  # [lanes, V] int32: how often each lane has said each token
    lanes: Tensor  # [B] int64: the lane of each row
    ids: Tensor  # [R] int64: the fed tokens; those of a row past its first are drafts


def draw(logits: Tensor, rows: Sequence[Settings]) -> Draws:
    """One token per row of logits [R, V], any float: ``reference.support`` and ``reference.pick`` of its candidates."""
    numbers = [[*packed(row), row.position] for row in rows]
    uploaded = torch.tensor(numbers, dtype=torch.int64).to(logits.device)
    out = draws_in(torch.empty(len(rows) * OUT, dtype=torch.int32, device=logits.device))
    draw_into(out, logits, uploaded[:, :NUMBERS], uploaded[:, NUMBERS])
    return out


def draw_into(
    out: Draws,
    logits: Tensor,
    settings: Tensor,
    positions: Tensor,
    *,
    width: int = 1,
    shift: int = 0,
    counted: Counted | None = None,
) -> None:
    """As ``draw``, by what already lies on the device: settings [R / width, NUMBERS] of the rows, each of ``width``
    columns; column ``r`` fills ``positions[r] + shift``. Without ``counted`` penalties are left out."""
    R, V = logits.shape
    chunks = triton.cdiv(V, CHUNK)
    keys = torch.empty(R, chunks, K, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(R, chunks, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(peaks)
    counts, lanes, ids = counted or (None, None, None)
    candidates_kernel[(chunks, R)](
        logits, settings, keys, peaks, sums, counts, lanes, ids, V, logits.stride(0), settings.stride(0),
        0 if counts is None else counts.stride(0), width, chunks,
        BV=CHUNK, K=K, KP=KP, LEAST=LEAST, COUNTED=counts is not None, num_warps=8, enable_fp_fusion=False,
        **pdl.options(logits),
    )  # fmt: skip
    draw_kernel[(R,)](
        keys, peaks, sums, settings, positions, *out, settings.stride(0), positions.stride(0), shift, width, chunks,
        BC=triton.next_power_of_2(chunks), BCK=triton.next_power_of_2(chunks * K), K=K, KP=KP, LEAST=LEAST, num_warps=4,
        enable_fp_fusion=False,
        **pdl.options(logits),
    )  # fmt: skip


def count(counts: Tensor, lanes: Tensor, said: Tensor) -> None:
    """Add the tokens said [B, D] int64, -1 for none, to the counts [lanes, V] int32 of the rows' lanes [B] int64."""
    B, D = said.shape
    count_kernel[(B,)](
        counts, lanes, said, counts.stride(0), D, BD=triton.next_power_of_2(D), num_warps=1, **pdl.options(counts)
    )
