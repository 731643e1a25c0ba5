"""Activations compiled by numba."""

from __future__ import annotations

from ctypes import PYFUNCTYPE, c_int64, c_void_p

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from ninfer_kernels.compiled import cfunc, njit

FLOATS = types.CPointer(types.float32)  # type: ignore[no-untyped-call]
# NaN and infinity keep their meaning
FLAGS = {"reassoc", "contract", "nsz"}


@njit(inline="always", fastmath=FLAGS)
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-x) to a few ulp, without a branch, so that it vectorizes; e^-|x| as Cephes' expf computes it."""
    exact = -np.abs(x)
    z = np.float32(-87.0) if exact < np.float32(-87.0) else exact
    n = np.floor(z * np.float32(1.44269504) + np.float32(0.5))
    r = z - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    e = p * np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    e = np.float32(0) if exact < np.float32(-87.0) else e
    return (e if x < np.float32(0) else np.float32(1)) / (np.float32(1) + e)


@cfunc(types.void(FLOATS, FLOATS, types.int64, types.int64), fastmath=FLAGS)
def swiglu(gate_up, out, rows, inner):  # type: ignore[no-untyped-def]
    """``reference.swiglu``; gate_up: [rows, 2 * inner], out: [rows, inner] fp32, contiguous."""
    gate_up_R2I = carray(gate_up, (rows, 2 * inner))
    out_RI = carray(out, (rows, inner))
    for r in range(rows):
        for i in range(inner):
            g = gate_up_R2I[r, i]
            out_RI[r, i] = g * _sigmoid(g) * gate_up_R2I[r, inner + i]


# called with the GIL held: letting go of it costs more than the few microseconds inside
SWIGLU = PYFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int64)(swiglu.address)
