"""Normalisation over the last dimension."""

from . import reference
from .routes import add_rms_norm, gated_rms_norm, head_rms_norm, rms_norm

__all__ = ["add_rms_norm", "gated_rms_norm", "head_rms_norm", "reference", "rms_norm"]
