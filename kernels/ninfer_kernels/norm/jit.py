"""Norms compiled by numba: one pass for the sum, one for the result, no temporaries."""

from __future__ import annotations

from ctypes import PYFUNCTYPE, c_double, c_int64, c_void_p

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from ninfer_kernels.compiled import cfunc

FLOATS = types.CPointer(types.float32)  # type: ignore[no-untyped-call]
# sums may be reordered and fused; NaN and infinity keep their meaning
FLAGS = {"reassoc", "contract", "nsz"}


@cfunc(types.void(FLOATS, FLOATS, FLOATS, types.int64, types.int64, types.float64), fastmath=FLAGS)
def rms_norm(x, weight, out, rows, width, eps):  # type: ignore[no-untyped-def]
    """``reference.rms_norm``; x and out: [rows, width] fp32, contiguous."""
    x_RH, out_RH = carray(x, (rows, width)), carray(out, (rows, width))
    w_H = carray(weight, (width,))
    for r in range(rows):
        total = np.float32(0)
        for h in range(width):
            total += x_RH[r, h] * x_RH[r, h]
        scale = np.float32(1.0 / np.sqrt(total / width + eps))
        for h in range(width):
            out_RH[r, h] = x_RH[r, h] * scale * w_H[h]


# called with the GIL held: letting go of it costs more than the few microseconds inside
RMS_NORM = PYFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_double)(rms_norm.address)
