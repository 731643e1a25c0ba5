"""The definition of each activation, in plain torch and fp32."""

import torch
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """SwiGLU over a stacked projection: ``g * sigmoid(g) * u``, in fp32 with one rounding at the end.

    gate_up: [..., 2I], the first half g, the second u -> [..., I] in the same dtype. Source: Shazeer 2020, eq. 6.
    """
    g, u = gate_up.float().chunk(2, dim=-1)
    return (g * torch.sigmoid(g) * u).to(gate_up.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)``, in fp32 with one rounding to x's dtype at the end. The shapes broadcast."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
