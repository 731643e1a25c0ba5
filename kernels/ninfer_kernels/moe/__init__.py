"""Mixture of experts: which experts a token goes to, and the sum of what they say."""

from . import reference
from .routes import mix, route

__all__ = ["mix", "reference", "route"]
