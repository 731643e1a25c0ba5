"""Mixture of experts: which experts a token goes to, and the sum of what they say."""

from . import reference
from .layer import Experts, PackedExperts, fits
from .routes import mix, route, sparse

__all__ = ["Experts", "PackedExperts", "fits", "mix", "reference", "route", "sparse"]
