"""Native functions made at run time with llvmlite, and the few words of vector code they are written in.

Instructions are laid down by hand: numba's vectorization of the same loops measured ten times slower. Compiling takes
30 to 100 ms a function (formats of 256 values up to 700 ms), in memory: there is no cache to go stale.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from llvmlite import ir

from ninfer_kernels.native import Code
from ninfer_kernels.team import run_together

PTR = ir.PointerType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
LANES = 8
VEC = ir.VectorType(F32, LANES)

Values = list[ir.Value]


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def loop(
    b: ir.IRBuilder, count: ir.Value, init: Sequence[ir.Value], body: Callable[[ir.Value, Values], Values]
) -> Values:
    """``for i in range(count): state = body(i, state)``; gives the last state. ``count`` is i64 and may be zero."""
    before, head = b.block, b.append_basic_block("head")
    inside, after = b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(i64(0), before)
    state = [b.phi(value.type) for value in init]
    for phi, value in zip(state, init, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", i, count), inside, after)
    b.position_at_end(inside)
    new = body(i, list(state))
    i.add_incoming(b.add(i, i64(1)), b.block)
    for phi, value in zip(state, new, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
    return list(state)


def at(b: ir.IRBuilder, base: ir.Value, index: ir.Value | int, item: ir.Type = I8) -> ir.Value:
    """The address of ``base[index]`` for items of this type."""
    return b.gep(base, [i64(index) if isinstance(index, int) else index], source_etype=item)


def load(b: ir.IRBuilder, typ: ir.Type, address: ir.Value) -> ir.Value:
    """An unaligned load."""
    return b.load(address, align=1, typ=typ)


def splat(b: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """A scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    first = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    )


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once."""
    name = f"llvm.fma.v{LANES}f32"
    declared = b.module.globals.get(name)
    if declared is None:
        declared = ir.Function(b.module, ir.FunctionType(VEC, [VEC] * 3), name)
    return b.call(declared, [x, y, z])


def total(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of the lanes, halves first: one fixed order, whoever calls."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            b.shuffle_vector(
                vector, undefined, ir.Constant(ir.VectorType(I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = b.fadd(low, high)
    return b.extract_element(vector, ir.Constant(I32, 0))


class Native:
    """A compiled ``void name(int64_t *arguments)``; the code lives as long as this object."""

    def __init__(self, module: ir.Module, name: str) -> None:
        self._code = Code(str(module))
        self._address = self._code.address(name)
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)

    def together(self, arguments: ctypes.Array[ctypes.c_int64], threads: int) -> None:
        """Run on up to ``threads`` threads at once, each with the same arguments; returns when the work is done."""
        where = ctypes.addressof(arguments)
        if threads == 1 or not run_together(self._address, where, threads):
            self._alone(where)
