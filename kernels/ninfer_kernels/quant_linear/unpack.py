"""How each block format becomes fp32 lanes, as LLVM instructions (``spec/artifact.md`` §11.5).

``UNPACK[format](b, block)`` yields the values of the block at address ``block``, eight at a time in order. Products of a
scale and a code are exact in fp32 (at most 24 bits), so one fused multiply-add rounds exactly where the definition does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llvmlite import ir

from .jit import F16, F32, I8, I16, I32, LANES, VEC, at, fma, load, splat

BYTES16 = ir.VectorType(I8, 16)
BYTES8 = ir.VectorType(I8, LANES)
INTS = ir.VectorType(I32, LANES)

Unpack = Callable[[ir.IRBuilder, ir.Value], Iterator[ir.Value]]


def half(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """A stored binary16 as fp32."""
    return b.fpext(b.bitcast(load(b, I16, address), F16), F32)


def scale(b: ir.IRBuilder, block: ir.Value, offset: int) -> ir.Value:
    """The binary16 at ``offset`` in every lane."""
    return splat(b, half(b, at(b, block, offset)))


def every(vector: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def eight(b: ir.IRBuilder, codes: ir.Value, start: int) -> ir.Value:
    """Lanes ``start .. start + 7`` of a byte vector."""
    order = ir.Constant(ir.VectorType(I32, LANES), list(range(start, start + LANES)))
    return b.shuffle_vector(codes, ir.Constant(codes.type, ir.Undefined), order)


def unsigned(b: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    return b.uitofp(b.zext(codes, INTS), VEC)


def signed(b: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    return b.sitofp(b.sext(codes, INTS), VEC)


def nibbles(b: ir.IRBuilder, address: ir.Value) -> tuple[ir.Value, ir.Value]:
    """16 bytes as their low and their high nibbles."""
    packed = load(b, BYTES16, address)
    return b.and_(packed, every(BYTES16, 15)), b.lshr(packed, every(BYTES16, 4))


def q4_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d = scale(b, block, 0)
    for part in nibbles(b, at(b, block, 2)):
        codes = b.sub(part, every(BYTES16, 8))
        for start in (0, 8):
            yield b.fmul(signed(b, eight(b, codes, start)), d)


def pair(b: ir.IRBuilder, block: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The two binary16 at the start of a block, each in every lane."""
    four = b.fpext(load(b, ir.VectorType(F16, 4), block), ir.VectorType(F32, 4))
    undefined = ir.Constant(four.type, ir.Undefined)
    return tuple(
        b.shuffle_vector(four, undefined, ir.Constant(ir.VectorType(I32, LANES), [lane] * LANES)) for lane in (0, 1)
    )


def q4_1(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = pair(b, block)
    packed = [b.zext(load(b, BYTES8, at(b, block, 4 + start)), INTS) for start in (0, 8)]
    for v in packed:
        yield fma(b, b.uitofp(b.and_(v, every(INTS, 15)), VEC), d, m)
    for v in packed:
        yield fma(b, b.uitofp(b.lshr(v, every(INTS, 4)), VEC), d, m)


def fifth_bits(b: ir.IRBuilder, high: ir.Value, start: int) -> ir.Value:
    """Bits ``start .. start + 7`` of a word, one a lane, in the place of bit 4."""
    moved = b.lshr(high, ir.Constant(INTS, list(range(start, start + LANES))))
    return b.and_(b.shl(moved, every(INTS, 4)), every(INTS, 16))


def q5_codes(b: ir.IRBuilder, block: ir.Value, offset: int) -> Iterator[ir.Value]:
    """5-bit codes as i32 lanes; the word of high bits is at ``offset``, the nibbles follow it."""
    high = splat(b, load(b, I32, at(b, block, offset)))
    for half_index, part in enumerate(nibbles(b, at(b, block, offset + 4))):
        for start in (0, 8):
            yield b.or_(b.zext(eight(b, part, start), INTS), fifth_bits(b, high, 16 * half_index + start))


def q5_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d = scale(b, block, 0)
    for codes in q5_codes(b, block, 2):
        yield b.fmul(b.sitofp(b.sub(codes, every(INTS, 16)), VEC), d)


def q5_1(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = scale(b, block, 0), scale(b, block, 2)
    for codes in q5_codes(b, block, 4):
        yield fma(b, b.sitofp(codes, VEC), d, m)


def q8_0(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d = scale(b, block, 0)
    for start in range(0, 32, LANES):
        yield b.fmul(signed(b, load(b, BYTES8, at(b, block, 2 + start))), d)


def byte(b: ir.IRBuilder, block: ir.Value, offset: int) -> ir.Value:
    return b.zext(load(b, I8, at(b, block, offset)), I32)


def k_scale(b: ir.IRBuilder, block: ir.Value, i: int) -> tuple[ir.Value, ir.Value]:
    """The 6-bit scale and minimum of sub-block ``i`` of a K block, from the 12 bytes at offset 4."""

    def bits(value: ir.Value, shift: int, mask: int) -> ir.Value:
        return b.and_(b.lshr(value, ir.Constant(I32, shift)), ir.Constant(I32, mask))

    if i < 4:
        return bits(byte(b, block, 4 + i), 0, 63), bits(byte(b, block, 8 + i), 0, 63)
    both = byte(b, block, 8 + i)
    high_a, high_b = bits(byte(b, block, i), 6, 3), bits(byte(b, block, 4 + i), 6, 3)
    four = ir.Constant(I32, 4)
    return b.or_(bits(both, 0, 15), b.shl(high_a, four)), b.or_(bits(both, 4, 15), b.shl(high_b, four))


def q4_k(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d, m = half(b, at(b, block, 0)), half(b, at(b, block, 2))
    for i in range(8):
        a, minimum = k_scale(b, block, i)
        step = splat(b, b.fmul(d, b.sitofp(a, F32)))
        base = splat(b, b.fneg(b.fmul(m, b.sitofp(minimum, F32))))
        for start in range(0, 32, LANES):
            packed = load(b, BYTES8, at(b, block, 16 + 32 * (i // 2) + start))
            codes = b.lshr(packed, every(BYTES8, 4)) if i % 2 else b.and_(packed, every(BYTES8, 15))
            yield fma(b, unsigned(b, codes), step, base)


def q6_k(b: ir.IRBuilder, block: ir.Value) -> Iterator[ir.Value]:
    d = half(b, at(b, block, 208))
    for n in range(2):
        for t in range(4):
            for start in range(0, 32, LANES):
                if start % 16 == 0:
                    stored = load(b, I8, at(b, block, 192 + 8 * n + 2 * t + start // 16))
                    step = splat(b, b.fmul(d, b.sitofp(b.sext(stored, I32), F32)))
                low = load(b, BYTES8, at(b, block, 64 * n + 32 * (t & 1) + start))
                low = b.lshr(low, every(BYTES8, 4)) if t >> 1 else b.and_(low, every(BYTES8, 15))
                high = load(b, BYTES8, at(b, block, 128 + 32 * n + start))
                high = b.and_(b.lshr(high, every(BYTES8, 2 * t)), every(BYTES8, 3))
                codes = b.sub(b.or_(low, b.shl(high, every(BYTES8, 4))), every(BYTES8, 32))
                yield b.fmul(signed(b, codes), step)


UNPACK: dict[str, Unpack] = {
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": q8_0,
    "q4_k": q4_k,
    "q6_k": q6_k,
}
