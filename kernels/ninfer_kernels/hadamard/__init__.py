"""The orthonormal Walsh-Hadamard transform of rows."""

from . import reference
from .reference import is_supported
from .routes import rotate

__all__ = ["is_supported", "reference", "rotate"]
