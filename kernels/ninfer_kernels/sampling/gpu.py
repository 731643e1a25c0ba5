"""The launches of the draw on a GPU. What was drawn lies in one buffer, so that it comes down in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv, next_power_of_2

from .draw_kernel import draw_kernel
from .draws import DRAWN, OUT, Draws, draws_in
from .kernel import feed_kernel, survey_kernel
from .order import KP, K
from .settings import NUMBERS, Settings, packed

GROUPS, SIZE = 8, 64  # a chunk's groups, and tokens of a group
CHUNK = GROUPS * SIZE  # of the vocabulary, for one warp
LISTS = 64  # that groups are dealt to, so that neighbours, often alike, are of different ones
FEW = 128  # tokens that are put in order at once
WARPS = 8  # of a draw


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
    C = cdiv(V, CHUNK)
    ranks = torch.empty(R * C * (GROUPS + 1) + R * 2 * KP, dtype=torch.int32, device=logits.device)
    groups, chunks, few_groups = ranks.split([R * C * GROUPS, R * C, R * 2 * KP])
    sums = torch.empty(R * C, dtype=torch.float32, device=logits.device)
    few = torch.empty(R * 2 * FEW, dtype=torch.int64, device=logits.device)
    counts, last, lanes, ids = spoken or (None, None, None, None)
    strides = logits.stride(0), settings.stride(0), 0 if counts is None else counts.stride(0)
    launch_kernel(
        survey_kernel, (C, R),
        logits, settings, chunks, groups, sums, few_groups, few, counts, lanes, ids, V, *strides, width, C,
        GROUPS=GROUPS, SIZE=SIZE, KP=KP, FEW=FEW, SPOKEN=spoken is not None, num_warps=1, enable_fp_fusion=False,
        **pdl.options(logits),
    )  # fmt: skip
    BC = next_power_of_2(C)
    launch_kernel(
        draw_kernel, (R,),
        logits, chunks, groups, sums, few_groups, few, settings, positions, *out, counts, last, lanes, ids,
        V, *strides, positions.stride(0), shift, width, C,
        BC=BC, BG=max(LISTS, BC * GROUPS), LISTS=LISTS, GROUPS=GROUPS, SIZE=SIZE, FEW=FEW, WIDE=max(FEW, 32 * WARPS),
        K=K, KP=KP, SPOKEN=spoken is not None, num_warps=WARPS, enable_fp_fusion=False, **pdl.options(logits),
    )  # fmt: skip


def feed(spoken: Spoken, said: Tensor) -> None:
    """Before a round reads its tokens: ids that are DRAWN become what their lanes have drawn last, and the tokens said
    [B, D] int64, -1 for none and DRAWN as before, are counted."""
    (B, D), W = said.shape, spoken.ids.shape[0] // said.shape[0]
    launch_kernel(
        feed_kernel, (B,),
        spoken.ids, spoken.last, spoken.lanes, spoken.counts, said, spoken.counts.stride(0), W, D,
        BW=next_power_of_2(W), BD=next_power_of_2(D), DRAWN=DRAWN, num_warps=1, **pdl.options(said),
    )  # fmt: skip
