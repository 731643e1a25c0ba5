"""``fp8_row_maxabs``: the largest magnitude of a row becomes 448, the largest code (``spec/artifact.md`` §13.3)."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
SCALES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def encode_rows(scale: str, x: Tensor) -> list[Tensor]:
    """x: [R, K] fp32 -> codes [R, K] and scales [R, 2], as bytes; ValueError for what cannot be stored.

    Values are rounded to bf16 first. Codes are the nearest of the product with the fp32 reciprocal of the scale.
    """
    rounded = x.bfloat16().float()
    if not bool(torch.isfinite(rounded).all()):
        raise ValueError("a value is not finite in bf16")
    largest = rounded.abs().amax(1)
    scales = (largest.double() / LARGEST).float().to(SCALES[scale])
    words = scales.view(torch.int16)
    words[(words == 0) & (largest > 0)] = 1
    if not bool(torch.isfinite(scales).all()):
        raise ValueError(f"a row with values up to {float(largest.max()):g} needs a scale beyond {scale}")
    wide = scales.double()
    inverse = torch.where(wide != 0, 1 / wide, 0).float()
    # the reciprocal of the smallest bf16 is infinite, and zero times that is no number
    products = torch.where(rounded == 0, 0, rounded * inverse[:, None]).clamp_(-LARGEST, LARGEST)
    codes = products.to(torch.float8_e4m3fn).view(torch.uint8)
    codes[largest == 0] = 0
    return [codes, scales.view(torch.uint8).view(-1, 2)]
