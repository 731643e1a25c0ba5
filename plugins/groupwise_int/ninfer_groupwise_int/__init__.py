"""Weight formats ``q2 q4 q5 q6 q8 t2``: whole numbers times a binary16 scale per group of 32, 64 or 128 columns."""

from ninfer_core.api import WeightFormat, hookimpl

from .formats import FORMATS

NINFER_API = 1


@hookimpl
def ninfer_weight_formats() -> tuple[WeightFormat, ...]:
    return FORMATS
