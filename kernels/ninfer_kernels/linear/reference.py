"""The definition of a dense product, in plain torch and fp32."""

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``, summed in fp32, rounded once to x's dtype. x: [T, K]; weight: [N, K] -> [T, N]."""
    return (x.float() @ weight.float().T).to(x.dtype)
