"""The s8 row codec in plain torch; the same operations on every device give the same bytes."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64  # elements that share a scale
LARGEST = 65504.0  # of fp16


def encode(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 in groups of 64. Source: spec/kv-dtypes.md §3, codec s8.

    rows: [R, D] any float, D a multiple of 64 -> codes [R, D] int8, scales [R, D/64] fp16. With a the largest |x| of a
    group: S = fp16(min(a / 127, 65504)), s = fp32(S), code = clamp(rne(x * (1 / s)), -127, 127). A scale that rounds to
    zero (an all-zero group, or a below about 3.8e-6) gives zero codes. A NaN makes its group's scale NaN, so it shows
    after ``decode``.
    """
    x = rows.float().reshape(rows.shape[0], rows.shape[1] // GROUP, GROUP)
    largest = x.abs().amax(-1)
    # a tensor as divisor: some devices turn division by a number into multiplication by its rounded reciprocal
    scales = (largest / torch.full_like(largest, 127.0)).clamp(max=LARGEST).half()
    s = scales.float()
    inverse = torch.where(s > 0, s.reciprocal(), torch.zeros_like(s))
    codes = (x * inverse[..., None]).round().clamp(-127, 127)
    return codes.nan_to_num(0.0).to(torch.int8).view(rows.shape), scales


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """codes [R, D] int8, scales [R, D/64] fp16 -> ``code * scale``, [R, D] fp32."""
    grouped = codes.float().reshape(codes.shape[0], scales.shape[1], GROUP)
    return (grouped * scales.float()[..., None]).reshape(codes.shape)
