"""Products with dense matrices."""

from . import reference
from .routes import linear, neighbour

__all__ = ["linear", "neighbour", "reference"]
