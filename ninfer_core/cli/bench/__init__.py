"""``ninfer bench``: what a model costs here, as JSON rows."""

from .command import COMMAND

__all__ = ["COMMAND"]
