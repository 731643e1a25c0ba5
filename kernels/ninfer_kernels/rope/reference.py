"""The definition of rotary embedding, in plain torch and fp32."""

import torch
from torch import Tensor

from ninfer_kernels.norm.reference import head_rms_norm


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle ``position * frequency``.

    positions: [T] int64, exact in fp32 below 2^24; frequencies: [D/2] fp32 -> cos [T, 1, D], its second half repeating
    the first, and sin [T, 1, D/2], fp32.
    """
    angles = (positions.float()[:, None] * frequencies)[:, None]
    cos = angles.cos()
    return torch.cat((cos, cos), dim=-1), angles.sin()


def axis_rotation(
    positions_3T: Tensor, frequencies: Tensor, axes: Tensor, attention_factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``rotation`` where pair ``r`` turns by the position on axis ``axes[r]`` (mRoPE), scaled by ``attention_factor``.

    positions_3T: [3, T], whole or fp32; axes: [D/2] int64.
    """
    angles = (positions_3T.t().float().index_select(1, axes) * frequencies)[:, None]
    cos = angles.cos() * attention_factor
    return torch.cat((cos, cos), dim=-1), angles.sin() * attention_factor


def interpolated(positions: Tensor, original_context: int, factor: float) -> Tensor:
    """Positions past ``original_context`` advance by 1 / ``factor`` each, those up to it stay: fp32."""
    p = positions.float()
    return torch.where(p > original_context, original_context + (p - original_context) * (1.0 / factor), p)


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (a, b) of elements r and r + R/2: ``(a cos - b sin, b cos + a sin)``.

    cos [T, 1, R] and sin [T, 1, R/2] as ``rotation`` gives them; elements from R on pass through. In fp32 with one
    rounding to x's dtype at the end. Source: Su et al. 2021, eq. 34, in the split-half pairing of GPT-NeoX.
    """
    x = x_THD.float()
    half = sin.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    c = cos[..., :half]
    return torch.cat((a * c - b * sin, b * c + a * sin, rest), dim=-1).to(x_THD.dtype)


def norm_rotate(x_THD: Tensor, weight_HD: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotate`` of ``head_rms_norm``, which is rounded to x's dtype in between."""
    return rotate(head_rms_norm(x_THD, weight_HD, eps), cos, sin)
