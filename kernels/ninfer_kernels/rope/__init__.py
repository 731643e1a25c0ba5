"""Rotary position embedding: angles of each position, and their application to heads (split-half pairing)."""

from . import frequencies, reference
from .reference import rotation
from .routes import rotate

__all__ = ["frequencies", "reference", "rotate", "rotation"]
