"""Rotary position embedding: angles of each position, and their application to heads (split-half pairing)."""

from . import frequencies, reference
from .reference import interpolated
from .routes import axis_rotation, norm_rotate, rotate, rotation

__all__ = ["axis_rotation", "frequencies", "interpolated", "norm_rotate", "reference", "rotate", "rotation"]
