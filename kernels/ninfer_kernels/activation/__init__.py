"""Gated activations."""

from . import reference
from .routes import swiglu

__all__ = ["reference", "swiglu"]
