"""How each block format becomes fp32 lanes, as LLVM instructions (``spec/artifact.md`` §11.5).

``UNPACK[format](b, block)`` yields the values of the block at address ``block``, eight at a time in order. Products of
a scale and a code are exact in fp32 (24 bits at most), so one fused multiply-add rounds just where the definition does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llvmlite import ir

from .jit import F16, F32, I8, I16, I32, LANES, VEC, at, fma, load, splat

BYTES = ir.VectorType(I8, LANES)
INTS = ir.VectorType(I32, LANES)

Unpack = Callable[[ir.IRBuilder, ir.Value], Iterator[ir.Value]]


def every(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def half(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """A stored binary16 as fp32."""
    return b.fpext(b.bitcast(load(b, I16, address), F16), F32)


def scales(b: ir.IRBuilder, block: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The first two binary16 of a block, each in every lane; one conversion instruction serves both."""
    four = b.fpext(load(b, ir.VectorType(F16, 4), block), ir.VectorType(F32, 4))
    undefined = ir.Constant(four.type, ir.Undefined)
    first, second = (b.shuffle_vector(four, undefined, every(INTS, lane)) for lane in (0, 1))
    return first, second


def codes(b: ir.IRBuilder, block: ir.Value, offset: int) -> ir.Value:
    """Eight bytes, zero-extended to i32 lanes."""
    return b.zext(load(b, BYTES, at(b, block, offset)), INTS)


def nibbles(b: ir.IRBuilder, block: ir.Value, offset: int) -> Iterator[ir.Value]:
    """16 bytes as 32 codes: all low nibbles, then all high ones."""
    packed = [codes(b, block, offset), codes(b, block, offset + LANES)]
    for both in packed:
        yield b.and_(both, every(INTS, 15))
    for both in packed:
        yield b.lshr(both, every(INTS, 4))


def fives(b: ir.IRBuilder, block: ir.Value, offset: int) -> Iterator[ir.Value]:
    """32 codes of five bits: the word of high bits is at ``offset``, the nibbles follow it."""
    high = splat(b, load(b, I32, at(b, block, offset)))
    for unit, low in enumerate(nibbles(b, block, offset + 4)):
        bits = b.lshr(high, ir.Constant(INTS, list(range(unit * LANES, unit * LANES + LANES))))
        yield b.or_(low, b.and_(b.shl(bits, every(INTS, 4)), every(INTS, 16)))


def floats(b: ir.IRBuilder, integers: ir.Value) -> ir.Value:
    return b.sitofp(integers, VEC)


def q4_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, _ = scales(b, block)
    for code in nibbles(b, block, 2):
        yield b.fmul(floats(b, b.sub(code, every(INTS, 8))), d)


def q4_1(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = scales(b, block)
    for code in nibbles(b, block, 4):
        yield fma(b, floats(b, code), d, m)


def q5_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, _ = scales(b, block)
    for code in fives(b, block, 2):
        yield b.fmul(floats(b, b.sub(code, every(INTS, 16))), d)


def q5_1(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = scales(b, block)
    for code in fives(b, block, 4):
        yield fma(b, floats(b, code), d, m)


def q8_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, _ = scales(b, block)
    for start in range(0, 32, LANES):
        stored = load(b, BYTES, at(b, block, 2 + start))
        yield b.fmul(floats(b, b.sext(stored, INTS)), d)


def sub_scale(b: ir.IRBuilder, block: ir.Value, i: int) -> tuple[ir.Value, ir.Value]:
    """Scale and minimum (six bits each) of sub-block ``i`` of a q4_k block, as fp32; packed in the 12 bytes at 4."""

    def bits(offset: int, shift: int, mask: int) -> ir.Value:
        byte = b.zext(load(b, I8, at(b, block, 4 + offset)), I32)
        return b.and_(b.lshr(byte, ir.Constant(I32, shift)), ir.Constant(I32, mask))

    if i < 4:
        a, minimum = bits(i, 0, 63), bits(i + 4, 0, 63)
    else:
        four = ir.Constant(I32, 4)
        a = b.or_(bits(i + 4, 0, 15), b.shl(bits(i - 4, 6, 3), four))
        minimum = b.or_(bits(i + 4, 4, 15), b.shl(bits(i, 6, 3), four))
    return b.sitofp(a, F32), b.sitofp(minimum, F32)


def q4_k(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = half(b, block), half(b, at(b, block, 2))
    for i in range(8):
        a, minimum = sub_scale(b, block, i)
        step, base = splat(b, b.fmul(d, a)), splat(b, b.fneg(b.fmul(m, minimum)))
        for start in range(0, 32, LANES):
            both = codes(b, block, 16 + 32 * (i // 2) + start)
            code = b.lshr(both, every(INTS, 4)) if i % 2 else b.and_(both, every(INTS, 15))
            yield fma(b, floats(b, code), step, base)


def q6_k(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d = half(b, at(b, block, 208))
    for unit in range(32):
        n, t, start = unit // 16, unit // 4 % 4, unit % 4 * LANES
        stored = b.sext(load(b, I8, at(b, block, 192 + unit // 2)), I32)
        step = splat(b, b.fmul(d, b.sitofp(stored, F32)))
        both = codes(b, block, 64 * n + 32 * (t & 1) + start)
        low = b.lshr(both, every(INTS, 4)) if t >> 1 else b.and_(both, every(INTS, 15))
        high = b.and_(b.lshr(codes(b, block, 128 + 32 * n + start), every(INTS, 2 * t)), every(INTS, 3))
        code = b.sub(b.or_(low, b.shl(high, every(INTS, 4))), every(INTS, 32))
        yield b.fmul(floats(b, code), step)


def bf16(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    words = ir.VectorType(I16, LANES)
    for start in range(0, 32, LANES):
        word = b.zext(load(b, words, at(b, block, 2 * start)), INTS)
        yield b.bitcast(b.shl(word, every(INTS, 16)), VEC)


def fp32(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    for start in range(0, 32, LANES):
        yield load(b, VEC, at(b, block, 4 * start))


UNPACK: dict[str, Unpack] = {
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": q8_0,
    "q4_k": q4_k,
    "q6_k": q6_k,
    "bf16": bf16,
    "fp32": fp32,
}
