"""Normalisation over the last dimension."""

from . import reference
from .routes import gated_rms_norm, head_rms_norm, rms_norm

__all__ = ["gated_rms_norm", "head_rms_norm", "reference", "rms_norm"]
