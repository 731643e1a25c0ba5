"""The definition of the rotation ``H_D``, in plain torch and fp32."""

import torch
from torch import Tensor


def is_supported(head_dim: int) -> bool:
    """Whether ``H_D`` exists here: a power of two, at least 1."""
    return head_dim > 0 and head_dim & (head_dim - 1) == 0


def rotate(x: Tensor) -> Tensor:
    """``H_D x`` with ``H_D[i][j] = (-1)^popcount(i & j) / sqrt(D)``; its own inverse. Source: spec/kv-dtypes.md §2.

    x: [..., D], any float -> [..., D] fp32. The order of the sums is part of the definition, since codes are
    formed from the result: pairs at stride 1, 2, 4, ... D/2 become (a + b, a - b), then every element is multiplied by
    ``fp32(D^-1/2)``.
    """
    head_dim = x.shape[-1]
    if not is_supported(head_dim):
        raise ValueError(f"a Hadamard rotation needs a power of two, not {head_dim}")
    out, stride = x.float().reshape(-1, head_dim), 1
    while stride < head_dim:
        pairs = out.view(-1, head_dim // (2 * stride), 2, stride)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        out = torch.stack((a + b, a - b), dim=2).view(-1, head_dim)
        stride *= 2
    scaled: Tensor = out * head_dim**-0.5
    return scaled.view(x.shape)
