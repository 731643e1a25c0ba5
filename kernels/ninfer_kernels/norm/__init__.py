"""Normalisation over the last dimension."""

from . import reference
from .torch_ops import rms_norm

__all__ = ["reference", "rms_norm"]
