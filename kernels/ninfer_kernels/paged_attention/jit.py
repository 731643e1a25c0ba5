"""Attention compiled by numba: it reads the pages where they lie, in their stored form, and needs no gather.

One (row, KV head) pair is a task; the threads of a team take tasks from a counter. A token's result is formed in an order
that depends on its position alone, so neither the batch, nor the number of threads, nor how many tokens of the row a
step feeds can change it.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from typing import Any

import numba
import numpy as np
import torch
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from ninfer_kernels.compiled import cfunc, njit
from ninfer_kernels.openmp import run_together

from .layout import PAGE_TOKENS, Rows, Stored

WIDEST = 64  # tokens a row may have in a step; longer chunks are the business of matrix products
# sums may be reordered and fused; NaN and infinity keep their meaning
FLAGS = {"reassoc", "contract", "nsz", "arcp"}
# multiply-adds (keys and values each) from which a second thread is worth its wake-up
WORTH_A_TEAM = 400_000
ELEMENTS = {torch.bfloat16: (np.uint16, 16), torch.float32: (np.uint32, 0)}  # stored bits, shift to fp32 bits


class Arg(enum.IntEnum):
    """Slots of a call's arguments, 8 bytes each."""

    Q = 0  # address, [T, H, D] fp32
    KEYS = 1  # address, [pages, G, P, D] stored bits
    VALUES = 2
    TABLE = 3  # address, [B, N] int64
    STARTS = 4  # address, [B+1] int64
    FRONTIERS = 5  # address, [B] int64
    OUT = 6  # address, [T, H, D] fp32
    ROWS = 7
    TABLE_WIDTH = 8
    PAGES = 9
    KV_HEADS = 10
    SCALE = 11  # the bits of a float64
    NEXT_TASK = 12  # counts up
    SIZE = 13


def attend(q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float) -> Tensor:
    """``reference.attend`` for storages whose decode is a cast, at most 64 tokens a row. q: [T, H, D] -> fp32."""
    q_THD = q_THD.detach().float().contiguous()
    _, heads, head_dim = q_THD.shape
    out = torch.empty_like(q_THD)
    k, v = keys.planes[0], values.planes[0]
    function = kernel(head_dim, heads // keys.heads, k.dtype)
    call: Call = rows.derived("jit", lambda: Call(rows))
    slots = call.slots
    slots[Arg.Q], slots[Arg.OUT] = q_THD.data_ptr(), out.data_ptr()
    slots[Arg.KEYS], slots[Arg.VALUES] = k.data_ptr(), v.data_ptr()
    slots[Arg.PAGES], slots[Arg.KV_HEADS] = k.shape[0], k.shape[1]
    slots[Arg.NEXT_TASK] = 0
    call.scale.value = scale
    threads = min(torch.get_num_threads(), len(rows) * keys.heads)
    if threads == 1 or call.pairs * heads * head_dim < WORTH_A_TEAM or not run_together(function.address, call.address, threads):
        function.call(call.address)
    return out


class Call:
    """The arguments of a step's calls; those that differ between layers are filled in before each."""

    def __init__(self, rows: Rows) -> None:
        starts, frontiers = np.array(rows.starts, dtype=np.int64), np.array(rows.frontiers, dtype=np.int64)
        table = np.ascontiguousarray(rows.page_table.numpy())
        self._owned = (starts, frontiers, table)
        self.slots = (ctypes.c_int64 * Arg.SIZE)()
        self.address = ctypes.addressof(self.slots)
        self.scale = ctypes.c_double.from_buffer(self.slots, 8 * Arg.SCALE)
        self.slots[Arg.TABLE], self.slots[Arg.TABLE_WIDTH] = table.ctypes.data, table.shape[1]
        self.slots[Arg.STARTS], self.slots[Arg.FRONTIERS] = starts.ctypes.data, frontiers.ctypes.data
        self.slots[Arg.ROWS] = len(rows)
        width = np.diff(starts)
        self.pairs = int((width * (frontiers + width)).sum())  # (query, key) pairs of one head, before causality


class Kernel:
    """A compiled ``void f(int64_t *arguments)``."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled  # owns the machine code
        self.address: int = compiled.address
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a ``void *``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _take(typing_context: Any, address: Any) -> Any:
    """Add one to the int64 at an address, atomically; gives its old value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = context.get_value_type(types.int64)
        counter = builder.inttoptr(args[0], integer.as_pointer())
        return builder.atomic_rmw("add", counter, integer(1), "monotonic")

    return types.int64(types.intp), generate


@njit(inline="always", fastmath=FLAGS)
def _widen(bits: Any, shift: Any) -> Any:
    return np.uint32(np.uint32(bits) << shift).view(np.float32)


@njit(inline="always", fastmath=FLAGS)
def _exp(x: Any) -> Any:
    """e^x for x <= 0, to 2 units in the last place; NaN stays NaN. Source: Cephes expf (its reduction and polynomial)."""
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
def _softmax(s: Any, n: int) -> None:
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


@functools.cache
def kernel(head_dim: int, group: int, stored: torch.dtype) -> Kernel:
    """The compiled attention for one head dimension, query heads per KV head and stored element."""
    bits, shift = ELEMENTS[stored]
    D, R, P = head_dim, group, PAGE_TOKENS
    SHIFT = np.uint32(shift)
    S_Q, S_KEYS, S_VALUES, S_TABLE, S_STARTS = int(Arg.Q), int(Arg.KEYS), int(Arg.VALUES), int(Arg.TABLE), int(Arg.STARTS)
    S_FRONTIERS, S_OUT, S_ROWS, S_WIDTH = int(Arg.FRONTIERS), int(Arg.OUT), int(Arg.ROWS), int(Arg.TABLE_WIDTH)
    S_PAGES, S_HEADS, S_SCALE, S_NEXT, SIZE = (
        int(Arg.PAGES), int(Arg.KV_HEADS), int(Arg.SCALE), int(Arg.NEXT_TASK), int(Arg.SIZE),
    )  # fmt: skip

    # j counts the row's queries of one KV head: token j // R, head j % R. Four keys (or values) at a time are widened and
    # meet every query; what lies past the row's end in its last page is computed but never read.
    @njit(fastmath=FLAGS)
    def scores(q_JD, keys, pages, g, frontier, s_JL):  # type: ignore[no-untyped-def]
        J, length = q_JD.shape[0], frontier + q_JD.shape[0] // R
        rows = np.empty((4, D), np.float32)
        for start in range(0, length, 4):
            page, offset = pages[start // P], start % P
            for i in range(4):
                for d in range(D):
                    rows[i, d] = _widen(keys[page, g, offset + i, d], SHIFT)
            for j in range(max(0, start - frontier) * R, J):
                a0, a1, a2, a3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                for d in range(D):
                    x = q_JD[j, d]
                    a0 += x * rows[0, d]
                    a1 += x * rows[1, d]
                    a2 += x * rows[2, d]
                    a3 += x * rows[3, d]
                s_JL[j, start], s_JL[j, start + 1], s_JL[j, start + 2], s_JL[j, start + 3] = a0, a1, a2, a3

    @njit(fastmath=FLAGS)
    def weighted(s_JL, values, pages, g, frontier, acc_JD):  # type: ignore[no-untyped-def]
        J, length = acc_JD.shape[0], frontier + acc_JD.shape[0] // R
        rows = np.empty((4, D), np.float32)
        for start in range(0, length, 4):
            page, offset = pages[start // P], start % P
            for i in range(4):
                for d in range(D):
                    rows[i, d] = _widen(values[page, g, offset + i, d], SHIFT)
            for j in range(max(0, start - frontier) * R, J):
                seen = frontier + j // R + 1 - start
                if seen >= 4:
                    p0, p1, p2, p3 = s_JL[j, start], s_JL[j, start + 1], s_JL[j, start + 2], s_JL[j, start + 3]
                    for d in range(D):
                        acc_JD[j, d] += p0 * rows[0, d] + p1 * rows[1, d] + p2 * rows[2, d] + p3 * rows[3, d]
                else:
                    for i in range(seen):
                        p0 = s_JL[j, start + i]
                        for d in range(D):
                            acc_JD[j, d] += p0 * rows[i, d]

    @cfunc(types.void(types.intp), fastmath=FLAGS)
    def run(address):  # type: ignore[no-untyped-def]
        a = carray(_pointer(address), (SIZE,), np.int64)
        scale = np.float32(carray(_pointer(address), (SIZE,), np.float64)[S_SCALE])
        B, N, G = a[S_ROWS], a[S_WIDTH], a[S_HEADS]
        starts, frontiers = carray(_pointer(a[S_STARTS]), (B + 1,), np.int64), carray(_pointer(a[S_FRONTIERS]), (B,), np.int64)
        table = carray(_pointer(a[S_TABLE]), (B, N), np.int64)
        keys = carray(_pointer(a[S_KEYS]), (a[S_PAGES], G, P, D), bits)
        values = carray(_pointer(a[S_VALUES]), (a[S_PAGES], G, P, D), bits)
        q_THD = carray(_pointer(a[S_Q]), (starts[B], G * R, D), np.float32)
        out_THD = carray(_pointer(a[S_OUT]), (starts[B], G * R, D), np.float32)
        while True:
            task = _take(address + 8 * S_NEXT)
            if task >= B * G:
                break
            b, g = task // G, task % G
            first, frontier = starts[b], frontiers[b]
            J = (starts[b + 1] - first) * R
            q_JD, acc_JD = np.empty((J, D), np.float32), np.zeros((J, D), np.float32)
            for j in range(J):
                for d in range(D):
                    q_JD[j, d] = q_THD[first + j // R, g * R + j % R, d] * scale
            s_JL = np.empty((J, frontier + J // R + 3), np.float32)
            scores(q_JD, keys, table[b], g, frontier, s_JL)
            for j in range(J):
                _softmax(s_JL[j], frontier + j // R + 1)
            weighted(s_JL, values, table[b], g, frontier, acc_JD)
            for j in range(J):
                for d in range(D):
                    out_THD[first + j // R, g * R + j % R, d] = acc_JD[j, d]

    return Kernel(run)


def check() -> None:
    """Compile and run a small case; raises whatever stands in the way."""
    plane = torch.zeros(1, 1, PAGE_TOKENS, 8, dtype=torch.bfloat16)
    plane[0, 0, 0] = 1.0
    stored = Stored((plane,), lambda planes: planes[0].float(), is_cast=True)
    rows = Rows((0, 1), (0,), torch.zeros(1, 1, dtype=torch.int64))
    if not torch.equal(attend(torch.ones(1, 1, 8), stored, stored, rows, 1.0), torch.ones(1, 1, 8)):
        raise RuntimeError(f"numba {numba.__version__} compiled attention wrongly")
