"""Attention compiled by numba: it reads the pages where they lie, in their stored form, and needs no gather.

One (row, KV head) pair is a task; the threads of a team take tasks from a counter. A token's result is formed in an
order that depends on its position alone, so neither the batch, nor the number of threads, nor how many tokens of the
row a step feeds can change it.

Legend: J queries of one row and KV head: token j // R, head j % R, with R query heads per KV head.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import torch
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from ninfer_kernels.compiled import cfunc, njit
from ninfer_kernels.team import run_together

from .layout import PAGE_TOKENS, Rows, Stored

# sums may be reordered and fused; NaN and infinity keep their meaning
FLAGS = {"reassoc", "contract", "nsz", "arcp"}
# multiply-adds, of keys and of values each, from which a second thread is worth its wake-up
WORTH_A_TEAM = 60_000
ELEMENTS = {torch.bfloat16: (np.uint16, 16), torch.float32: (np.uint32, 0)}  # stored bits, shift to the bits of fp32

# a call's arguments, 8 bytes each: addresses and sizes, SCALE as a float64, NEXT_TASK counting up
(Q, KEYS, VALUES, TABLE, STARTS, FRONTIERS, OUT, ROWS, TABLE_WIDTH, PAGES, KV_HEADS, SCALE, NEXT_TASK, SIZE) = range(14)


def attend(function: Kernel, q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float) -> Tensor:
    """``reference.attend`` through ``kernel(...)`` of the same shape; q: [T, H, D] any float -> [T, H, D] fp32."""
    q_THD = q_THD.detach().float().contiguous()
    _, heads, head_dim = q_THD.shape
    out = torch.empty_like(q_THD)
    k, v = keys.planes[0], values.planes[0]
    call: Call = rows.derived("jit", lambda: Call(rows))
    slots = call.slots
    slots[Q], slots[OUT] = q_THD.data_ptr(), out.data_ptr()
    slots[KEYS], slots[VALUES] = k.data_ptr(), v.data_ptr()
    slots[PAGES], slots[KV_HEADS] = k.shape[0], k.shape[1]
    slots[NEXT_TASK] = 0
    call.scale.value = scale
    threads = min(torch.get_num_threads(), len(rows) * keys.heads)
    together = threads > 1 and call.pairs * heads * head_dim >= WORTH_A_TEAM
    if not (together and run_together(function.address, call.address, threads)):
        function.call(call.address)
    return out


class Call:
    """The arguments of a step's calls; those that differ between layers are filled in before each."""

    def __init__(self, rows: Rows) -> None:
        starts, frontiers = np.array(rows.starts, dtype=np.int64), np.array(rows.frontiers, dtype=np.int64)
        table = np.ascontiguousarray(rows.page_table.numpy(), dtype=np.int64)
        self._owned = (starts, frontiers, table)
        self.slots = (ctypes.c_int64 * SIZE)()
        self.address = ctypes.addressof(self.slots)
        self.scale = ctypes.c_double.from_buffer(self.slots, 8 * SCALE)
        self.slots[TABLE], self.slots[TABLE_WIDTH] = table.ctypes.data, table.shape[1]
        self.slots[STARTS], self.slots[FRONTIERS] = starts.ctypes.data, frontiers.ctypes.data
        self.slots[ROWS] = len(rows)
        widths = np.diff(starts)
        self.pairs = int((widths * (frontiers + widths)).sum())  # (query, key) pairs of one head, before causality


class Kernel:
    """A compiled ``void f(int64_t *arguments)``."""

    def __init__(self, compiled: Any) -> None:
        self._owner = compiled
        self.address: int = compiled.address
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)


@functools.cache
def kernel(head_dim: int, group: int, stored: torch.dtype) -> Kernel:
    """The attention of one head dimension D, R query heads per KV head and stored element."""
    bits, shift = ELEMENTS[stored]
    # plain numbers only: they become constants of the machine code and part of the name under which it is kept
    D, R, SHIFT = head_dim, group, np.uint32(shift)

    @cfunc(types.void(types.intp), fastmath=FLAGS)
    def run(address):  # type: ignore[no-untyped-def]
        a = carray(_pointer(address), (SIZE,), np.int64)  # type: ignore[call-arg]
        scale = np.float32(carray(_pointer(address), (SIZE,), np.float64)[SCALE])
        B, G = a[ROWS], a[KV_HEADS]
        starts = carray(_pointer(a[STARTS]), (B + 1,), np.int64)
        frontiers = carray(_pointer(a[FRONTIERS]), (B,), np.int64)
        table = carray(_pointer(a[TABLE]), (B, a[TABLE_WIDTH]), np.int64)
        keys = carray(_pointer(a[KEYS]), (a[PAGES], G, PAGE_TOKENS, D), bits)
        values = carray(_pointer(a[VALUES]), (a[PAGES], G, PAGE_TOKENS, D), bits)
        q_THD = carray(_pointer(a[Q]), (starts[B], G * R, D), np.float32)
        out_THD = carray(_pointer(a[OUT]), (starts[B], G * R, D), np.float32)
        while True:
            task = _take(address + 8 * NEXT_TASK)
            if task >= B * G:
                break
            b, g = task // G, task % G
            first, frontier = starts[b], frontiers[b]
            J = (starts[b + 1] - first) * R
            q_JD, sum_JD = np.empty((J, D), np.float32), np.zeros((J, D), np.float32)
            # the last group of four may pass the row's end by three
            s_JL = np.empty((J, frontier + J // R + 3), np.float32)
            for j in range(J):
                for d in range(D):
                    q_JD[j, d] = q_THD[first + j // R, g * R + j % R, d] * scale
            _score(q_JD, keys, table[b], g, frontier, s_JL, D, R, SHIFT)
            for j in range(J):
                _softmax(s_JL[j], frontier + j // R + 1)
            _add_up(s_JL, values, table[b], g, frontier, sum_JD, D, R, SHIFT)
            for j in range(J):
                for d in range(D):
                    out_THD[first + j // R, g * R + j % R, d] = sum_JD[j, d]

    return Kernel(run)


# inlined, so that D and R are constants in them too
@njit(inline="always", fastmath=FLAGS)
def _score(q_JD, keys, pages, g, frontier, s_JL, D, R, shift):  # type: ignore[no-untyped-def]
    """q.k of every query and every key it sees: four keys at a time are widened and meet all queries. A key past the
    row's end, in its last page, is met too, and the score never read."""
    J, length = q_JD.shape[0], frontier + q_JD.shape[0] // R
    rows = np.empty((4, D), np.float32)
    for start in range(0, length, 4):
        page, offset = pages[start // PAGE_TOKENS], start % PAGE_TOKENS
        for i in range(4):
            for d in range(D):
                rows[i, d] = _widen(keys[page, g, offset + i, d], shift)
        for j in range(max(0, start - frontier) * R, J):
            s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for d in range(D):
                x = q_JD[j, d]
                s0 += x * rows[0, d]
                s1 += x * rows[1, d]
                s2 += x * rows[2, d]
                s3 += x * rows[3, d]
            s_JL[j, start], s_JL[j, start + 1], s_JL[j, start + 2], s_JL[j, start + 3] = s0, s1, s2, s3


@njit(inline="always", fastmath=FLAGS)
def _add_up(s_JL, values, pages, g, frontier, sum_JD, D, R, shift):  # type: ignore[no-untyped-def]
    """The values a query sees, by its weights: whole groups of four, then what is left of its last group."""
    J, length = sum_JD.shape[0], frontier + sum_JD.shape[0] // R
    rows = np.empty((4, D), np.float32)
    for start in range(0, length, 4):
        page, offset = pages[start // PAGE_TOKENS], start % PAGE_TOKENS
        for i in range(4):
            for d in range(D):
                rows[i, d] = _widen(values[page, g, offset + i, d], shift)
        for j in range(max(0, start - frontier) * R, J):
            seen = frontier + j // R + 1 - start
            if seen >= 4:
                p0, p1, p2, p3 = s_JL[j, start], s_JL[j, start + 1], s_JL[j, start + 2], s_JL[j, start + 3]
                for d in range(D):
                    sum_JD[j, d] += p0 * rows[0, d] + p1 * rows[1, d] + p2 * rows[2, d] + p3 * rows[3, d]
            else:
                for i in range(seen):
                    p0 = s_JL[j, start + i]
                    for d in range(D):
                        sum_JD[j, d] += p0 * rows[i, d]


@njit(fastmath=FLAGS)
def _softmax(s, n):  # type: ignore[no-untyped-def]
    """s[:n] becomes its softmax."""
    largest = s[0]
    for i in range(n):
        largest = max(largest, s[i])
    total = np.float32(0)
    for i in range(n):
        e = _exp(s[i] - largest)
        s[i] = e
        total += e
    inverse = np.float32(1) / total
    for i in range(n):
        s[i] *= inverse


@njit(inline="always", fastmath=FLAGS)
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 to about 2 ulp; NaN stays NaN. Source: the reduction and the polynomial of Cephes' expf."""
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(inline="always", fastmath=FLAGS)
def _widen(bits, shift):  # type: ignore[no-untyped-def]
    """The fp32 number whose upper bits are stored."""
    return np.uint32(np.uint32(bits) << shift).view(np.float32)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a ``void *``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate


@intrinsic
def _take(typing_context: Any, address: Any) -> Any:
    """Add one to the int64 at an address, atomically; gives its old value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = context.get_value_type(types.int64)
        counter = builder.inttoptr(args[0], integer.as_pointer())
        return builder.atomic_rmw("add", counter, integer(1), "monotonic")

    return types.int64(types.intp), generate
