"""Attention over paged, stored keys and values."""

from . import reference
from .layout import PAGE_TOKENS, Rows, Stored
from .routes import attend, compiled_route

__all__ = ["PAGE_TOKENS", "Rows", "Stored", "attend", "compiled_route", "reference"]
