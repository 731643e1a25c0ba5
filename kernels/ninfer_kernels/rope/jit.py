"""Rotary embedding compiled by numba: one pass, no temporaries."""

from __future__ import annotations

from ctypes import PYFUNCTYPE, c_int64, c_void_p

from numba import carray, types  # type: ignore[attr-defined]

from ninfer_kernels.compiled import cfunc

FLOATS = types.CPointer(types.float32)  # type: ignore[no-untyped-call]
SIZE = types.int64


@cfunc(types.void(FLOATS, FLOATS, FLOATS, FLOATS, SIZE, SIZE, SIZE, SIZE, SIZE), fastmath={"contract", "nsz"})
def rotate(x, cos, sin, out, tokens, heads, dim, rotary, stride):  # type: ignore[no-untyped-def]
    """``reference.rotate``; x: ``tokens`` rows of [heads, dim], ``stride`` apart; out: [tokens, heads, dim]; fp32."""
    half = rotary // 2
    x_TS, out_THD = carray(x, (tokens, stride)), carray(out, (tokens, heads, dim))
    cos_TD, sin_TD = carray(cos, (tokens, rotary)), carray(sin, (tokens, half))
    for t in range(tokens):
        for h in range(heads):
            for i in range(half):
                a, b = x_TS[t, h * dim + i], x_TS[t, h * dim + half + i]
                c, s = cos_TD[t, i], sin_TD[t, i]
                out_THD[t, h, i] = a * c - b * s
                out_THD[t, h, half + i] = b * c + a * s
            for i in range(rotary, dim):
                out_THD[t, h, i] = x_TS[t, h * dim + i]


# called with the GIL held: letting go of it costs more than the few microseconds inside
ROTATE = PYFUNCTYPE(None, *[c_void_p] * 4, *[c_int64] * 5)(rotate.address)
