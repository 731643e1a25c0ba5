"""Which implementation serves a step."""

from __future__ import annotations

import functools
import logging
from types import ModuleType

from torch import Tensor

from . import cpu
from .layout import Rows, Stored


def attend(q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float) -> Tensor:
    """``reference.attend`` on the fastest route there is. q: [T, H, D] any float -> [T, H, D] fp32."""
    if q_THD.device.type == "cpu" and keys.is_cast and values.is_cast and (jit := compiled_route()) is not None:
        same = keys.planes[0].dtype == values.planes[0].dtype and keys.planes[0].dtype in jit.ELEMENTS
        if same and rows.widest <= jit.WIDEST:
            return jit.attend(q_THD, keys, values, rows, scale)  # type: ignore[no-any-return]
    return cpu.attend(q_THD, keys, values, rows, scale)


@functools.cache
def compiled_route() -> ModuleType | None:
    """The compiled route, or None where numba is missing or cannot compile here."""
    try:
        from . import jit

        jit.check()
    except Exception as error:
        logging.getLogger(__name__).warning("paged attention: torch route, numba failed: %s", type(error).__name__)
        return None
    return jit
