"""Products with dense matrices."""

from . import reference
from .routes import linear

__all__ = ["linear", "reference"]
