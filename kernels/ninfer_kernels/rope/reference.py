"""The definition of rotary embedding, in plain torch and fp32."""

import torch
from torch import Tensor


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle ``position * frequency``.

    positions: [T] int64, exact in fp32 below 2^24; frequencies: [D/2] fp32 -> cos [T, 1, D], its second half repeating
    the first, and sin [T, 1, D/2], fp32.
    """
    angles = (positions.float()[:, None] * frequencies)[:, None]
    cos = angles.cos()
    return torch.cat((cos, cos), dim=-1), angles.sin()


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (a, b) of elements r and r + D/2: ``(a cos - b sin, b cos + a sin)``.

    cos and sin as ``rotation`` gives them; in fp32 with one rounding to x's dtype at the end. Source: Su et al. 2021,
    eq. 34, in the split-half pairing of GPT-NeoX.
    """
    a, b = x_THD.float().chunk(2, dim=-1)
    c = cos[..., : a.shape[-1]]
    return torch.cat((a * c - b * sin, b * c + a * sin), dim=-1).to(x_THD.dtype)
