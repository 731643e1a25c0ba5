"""What ``ops.py`` measures: every GPU kernel of ``ninfer_kernels``, at the shapes of published models."""

from __future__ import annotations

from . import attention, delta_rule, experts, matrices, sampling, small
from .case import Case, Sizes, published

__all__ = ["Case", "Sizes", "cases", "published"]


def cases(sizes: Sizes) -> list[Case]:
    """Every case, by area."""
    areas = (matrices, small, attention, delta_rule, experts, sampling)
    return [case for area in areas for case in area.cases(sizes)]
