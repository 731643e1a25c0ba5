"""Normalisation over the last dimension."""

from . import reference
from .routes import rms_norm

__all__ = ["reference", "rms_norm"]
