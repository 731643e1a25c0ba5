"""Weight formats ``fp8_e4m3fn_row_bf16`` and ``fp8_e4m3fn_row_fp16``: FP8 codes and one scale a row."""

from ninfer_core.api import WeightFormat, hookimpl

from .formats import FORMATS

NINFER_API = 1


@hookimpl
def ninfer_weight_formats() -> tuple[WeightFormat, ...]:
    return FORMATS
