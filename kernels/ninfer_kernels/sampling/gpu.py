"""The launches of the draw on a GPU. What was drawn lies in one buffer, so that it comes down in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ninfer_kernels import pdl

from .draws import DRAWN, OUT, Draws, draws_in
from .kernel import KP, LEAST, K, candidates_kernel, draw_kernel, feed_kernel
from .settings import NUMBERS, Settings, packed

CHUNK = 4096  # of the vocabulary, for one program


class Spoken(NamedTuple):
    """What lanes have said: what penalties are made of, and what a round is fed with before the host knows it."""

    counts: Tensor  # [lanes, V] int32: how often each lane has said each token
    last: Tensor  # [lanes] int64: what each lane has drawn last; -1 where the draw failed
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
    spoken: Spoken | None = None,
) -> None:
    """As ``draw``, by what already lies on the device: settings [R / width, NUMBERS] of the rows, each of ``width``
    columns; column ``r`` fills ``positions[r] + shift``. Without ``spoken`` penalties are left out; with it, lanes have
    drawn the token of their row's first column last."""
    R, V = logits.shape
    chunks = triton.cdiv(V, CHUNK)
    keys = torch.empty(R, chunks, K, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(R, chunks, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(peaks)
    counts, last, lanes, ids = spoken or (None, None, None, None)
    candidates_kernel[(chunks, R)](
        logits, settings, keys, peaks, sums, counts, lanes, ids, V, logits.stride(0), settings.stride(0),
        0 if counts is None else counts.stride(0), width, chunks,
        BV=CHUNK, K=K, KP=KP, LEAST=LEAST, COUNTED=counts is not None, num_warps=8, enable_fp_fusion=False,
        **pdl.options(logits),
    )  # fmt: skip
    draw_kernel[(R,)](
        keys, peaks, sums, settings, positions, *out, last, lanes,
        settings.stride(0), positions.stride(0), shift, width, chunks,
        BC=triton.next_power_of_2(chunks), BCK=triton.next_power_of_2(chunks * K), K=K, KP=KP, LEAST=LEAST,
        SPOKEN=spoken is not None, num_warps=4, enable_fp_fusion=False,
        **pdl.options(logits),
    )  # fmt: skip


def feed(spoken: Spoken, said: Tensor) -> None:
    """Before a round reads its tokens: ids that are DRAWN become what their lanes have drawn last, and the tokens said
    [B, D] int64, -1 for none and DRAWN as before, are counted."""
    (B, D), W = said.shape, spoken.ids.shape[0] // said.shape[0]
    feed_kernel[(B,)](
        spoken.ids, spoken.last, spoken.lanes, spoken.counts, said, spoken.counts.stride(0), W, D,
        BW=triton.next_power_of_2(W), BD=triton.next_power_of_2(D), DRAWN=DRAWN, num_warps=1, **pdl.options(said),
    )  # fmt: skip
