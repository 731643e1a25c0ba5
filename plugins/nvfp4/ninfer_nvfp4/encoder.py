"""FP to NVFP4 (``spec/artifact.md`` §13.6): the largest magnitude becomes 2688 = 6 * 448, code times block scale."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ninfer_kernels.quant_linear import reference_planes

LARGEST_CODE, LARGEST_SCALE = 6.0, 448.0
# halfway between neighbouring codes; a tie goes to the even one, so below an odd code the boundary itself is above it
BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def divisor_of(rows: Iterable[Tensor]) -> Tensor:
    """The divisor [] fp32 of a matrix; ValueError for a value that is not finite, or a matrix too small for one."""
    largest = 0.0
    for x in rows:
        if not bool(torch.isfinite(x).all()):
            raise ValueError("a value is not finite")
        largest = max(largest, float(x.abs().max()))
    divisor = torch.tensor(LARGEST_CODE * LARGEST_SCALE / (largest or 1.0), dtype=torch.float32)
    if not bool(torch.isfinite(divisor)):
        raise ValueError(f"values of at most {largest:g} need a divisor beyond fp32")
    return divisor


def encode_rows(x: Tensor, divisor: Tensor) -> list[Tensor]:
    """x: [R, K] fp32 -> codes [R, K / 2] and scales [R, K / 16], as bytes."""
    blocks = x.float().view(len(x), -1, 16) * divisor
    largest = blocks.abs().amax(-1)
    scales = (largest / LARGEST_CODE).clamp_(max=LARGEST_SCALE).to(torch.float8_e4m3fn)
    step = scales.float()[..., None]
    scaled = torch.where(step > 0, blocks / step, 0).clamp_(-LARGEST_CODE, LARGEST_CODE)
    magnitude = torch.bucketize(scaled.abs(), boundaries()).to(torch.uint8)
    # zero has no sign
    codes = torch.where((scaled < 0) & (magnitude > 0), magnitude | 8, magnitude)
    return [reference_planes.packed(codes.flatten(1), 4), scales.view(torch.uint8)]


def boundaries() -> Tensor:
    """Values above ``boundaries()[i]`` get a code above ``i``."""
    halfway = torch.tensor(BOUNDARIES)
    below = torch.nextafter(halfway, torch.tensor(0.0))
    odd = torch.arange(len(BOUNDARIES)) % 2 == 1
    return torch.where(odd, below, halfway)
