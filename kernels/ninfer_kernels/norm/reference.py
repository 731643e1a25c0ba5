"""The definition of each norm, in plain torch and fp32."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm: ``x / sqrt(mean(x^2) + eps) * weight``, in fp32 with one rounding to x's dtype at the end.

    x: [..., H]; weight: [H] fp32 -> [..., H]. A zero row stays zero (eps > 0). Source: Zhang and Sennrich 2019, eq. 4,
    with eps inside the root as Llama has it.
    """
    v = x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def head_rms_norm(x_THD: Tensor, weight_HD: Tensor, eps: float) -> Tensor:
    """``rms_norm`` over each head, every head with a weight of its own; weight_HD: [H, D] fp32."""
    return rms_norm(x_THD, weight_HD, eps)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x += delta``, summed in fp32 and rounded to x's dtype, then ``rms_norm`` of what x now holds."""
    x.copy_(x.float() + delta.float())
    return rms_norm(x, weight, eps)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm(x) * SiLU(gate)``, all in fp32 with one rounding to the gate's dtype at the end.

    x, gate: [..., D]; weight: [D] fp32. Source: flash-linear-attention's FusedRMSNormGated.
    """
    g = gate.float()
    return (rms_norm(x.float(), weight, eps) * g * torch.sigmoid(g)).to(gate.dtype)
