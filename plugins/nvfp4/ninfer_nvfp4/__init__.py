"""Weight format ``nvfp4``: E2M1 codes, an E4M3 scale per 16 columns, one fp32 divisor per stacked matrix."""

from ninfer_core.api import WeightFormat, hookimpl

from .formats import FORMATS

NINFER_API = 1


@hookimpl
def ninfer_weight_formats() -> tuple[WeightFormat, ...]:
    return FORMATS
