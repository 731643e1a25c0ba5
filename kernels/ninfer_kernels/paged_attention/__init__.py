"""Attention over paged, stored keys and values."""

from . import reference, store
from .layout import PAGE_TOKENS, Rows, Stored
from .routes import WIDEST_COMPILED, attend, compiled

__all__ = ["PAGE_TOKENS", "WIDEST_COMPILED", "Rows", "Stored", "attend", "compiled", "reference", "store"]
