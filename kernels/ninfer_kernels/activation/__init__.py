"""Gated activations."""

from . import reference
from .routes import sigmoid_gate, swiglu

__all__ = ["reference", "sigmoid_gate", "swiglu"]
