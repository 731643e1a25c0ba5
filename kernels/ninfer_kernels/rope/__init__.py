"""Rotary position embedding: angles of each position, and their application to heads (split-half pairing)."""

from . import frequencies, reference
from .reference import axis_rotation, interpolated, rotation
from .routes import norm_rotate, rotate

__all__ = ["axis_rotation", "frequencies", "interpolated", "norm_rotate", "reference", "rotate", "rotation"]
