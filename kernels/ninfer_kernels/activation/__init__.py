"""Gated activations."""

from . import reference
from .torch_ops import swiglu

__all__ = ["reference", "swiglu"]
