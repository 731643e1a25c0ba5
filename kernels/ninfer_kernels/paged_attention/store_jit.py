"""The scatter of rows compiled by numba: bf16 by rounding to nearest even, or fp32 as it is."""

from __future__ import annotations

from ctypes import PYFUNCTYPE, c_int64, c_void_p

import numpy as np
import torch
from numba import carray, types  # type: ignore[attr-defined]

from ninfer_kernels.compiled import cfunc

WORDS = types.CPointer(types.uint32)  # type: ignore[no-untyped-call]
HALVES = types.CPointer(types.uint16)  # type: ignore[no-untyped-call]
INDEX = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
SIZE = types.int64


@cfunc(types.void(WORDS, WORDS, HALVES, HALVES, INDEX, SIZE, SIZE, SIZE, SIZE, SIZE))
def store_bf16(k, v, keys, values, index, tokens, heads, dim, k_stride, v_stride):  # type: ignore[no-untyped-def]
    """Bits of fp32 rows, ``stride`` apart per token, to bf16 rows of the planes."""
    k_TS, v_TS, rows = carray(k, (tokens, k_stride)), carray(v, (tokens, v_stride)), carray(index, (tokens, heads))
    for t in range(tokens):
        for h in range(heads):
            at = rows[t, h] * dim
            for i in range(dim):
                for side in range(2):
                    bits = k_TS[t, h * dim + i] if side == 0 else v_TS[t, h * dim + i]
                    if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
                        word = np.uint32(0x7FC0)  # a quiet NaN
                    else:
                        word = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
                    if side == 0:
                        keys[at + i] = np.uint16(word)
                    else:
                        values[at + i] = np.uint16(word)


@cfunc(types.void(WORDS, WORDS, WORDS, WORDS, INDEX, SIZE, SIZE, SIZE, SIZE, SIZE))
def store_fp32(k, v, keys, values, index, tokens, heads, dim, k_stride, v_stride):  # type: ignore[no-untyped-def]
    """Bits of fp32 rows, unchanged."""
    k_TS, v_TS, rows = carray(k, (tokens, k_stride)), carray(v, (tokens, v_stride)), carray(index, (tokens, heads))
    for t in range(tokens):
        for h in range(heads):
            at = rows[t, h] * dim
            for i in range(dim):
                keys[at + i] = k_TS[t, h * dim + i]
                values[at + i] = v_TS[t, h * dim + i]


# called with the GIL held: letting go of it costs more than the microseconds inside
_call = PYFUNCTYPE(None, *[c_void_p] * 5, *[c_int64] * 5)
STORE = {torch.bfloat16: _call(store_bf16.address), torch.float32: _call(store_fp32.address)}
