"""Mixture of experts: which experts a token goes to, and the sum of what they say."""

from . import reference
from .routes import mix, mix_stacked, route

__all__ = ["mix", "mix_stacked", "reference", "route"]
