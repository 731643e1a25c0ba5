"""How the formats with planes become fp32 lanes, as LLVM instructions (``spec/artifact.md`` §11.2-11.4).

``UNPACK_PLANES[format](b, codes, ...)`` yields the values of a block whose parts are at those addresses, eight at a
time in order. Products of a scale and a code are exact in fp32, so one rounding stands where the definition has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llvmlite import ir

from .jit import F16, F32, I8, I16, I32, LANES, VEC, at, load, splat
from .unpack import BYTES, INTS, every, floats

UnpackPlanes = Callable[..., Iterator[ir.Value]]


def shifts(step: int) -> ir.Constant:
    return ir.Constant(INTS, [step * lane for lane in range(LANES)])


def spread(b: ir.IRBuilder, address: ir.Value, bits: int) -> ir.Value:
    """``8 * bits`` bits at ``address``: lane ``j`` gets the word shifted to its own, not yet masked."""
    word = load(b, ir.IntType(LANES * bits), address)
    wide = word if bits == 4 else b.zext(word, I32)
    return b.lshr(splat(b, wide), shifts(bits))


def half_everywhere(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """A stored binary16 as fp32 in every lane.

    Converted as a vector: the scalar instruction merges into a register that some sum is being formed in.
    """
    word = b.zext(load(b, I16, address), I32)
    zeros = ir.Constant(ir.VectorType(I32, 2), [0, 0])
    four = b.bitcast(b.insert_element(zeros, word, ir.Constant(I32, 0)), ir.VectorType(F16, 4))
    wide = b.fpext(four, ir.VectorType(F32, 4))
    return b.shuffle_vector(wide, ir.Constant(wide.type, ir.Undefined), every(INTS, 0))


def scaled(b: ir.IRBuilder, code: ir.Value, scale: ir.Value) -> ir.Value:
    return b.fmul(floats(b, code), scale)


def signed(b: ir.IRBuilder, code: ir.Value, bits: int) -> ir.Value:
    """Two's complement of the low ``bits``; what stands above them is dropped."""
    rest = every(INTS, 32 - bits)
    return b.ashr(b.shl(code, rest), rest)


def q4_g64(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    s = half_everywhere(b, scale)
    for unit in range(64 // LANES):
        yield scaled(b, signed(b, spread(b, at(b, base, 4 * unit), 4), 4), s)


def q5_g64(b: ir.IRBuilder, base: ir.Value, high: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    yield from with_high(b, base, high, scale, 1)


def q6_g64(b: ir.IRBuilder, base: ir.Value, high: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    yield from with_high(b, base, high, scale, 2)


def with_high(b: ir.IRBuilder, base: ir.Value, high: ir.Value, scale: ir.Value, bits: int) -> Iterator[ir.Value]:
    """Nibbles whose ``bits`` higher bits, the sign on top, are in a plane of their own."""
    s = half_everywhere(b, scale)
    units = 32 // (LANES * bits)  # of the block, in one word of high bits
    for unit in range(64 // LANES):
        if unit % units == 0:
            word = splat(b, load(b, I32, at(b, high, 4 * (unit // units))))
        first = 32 - bits - LANES * bits * (unit % units)
        top = b.shl(word, ir.Constant(INTS, [first - bits * lane for lane in range(LANES)]))
        upper = b.and_(b.ashr(top, every(INTS, 28 - bits)), every(INTS, -16))
        low = b.and_(spread(b, at(b, base, 4 * unit), 4), every(INTS, 15))
        yield scaled(b, b.or_(low, upper), s)


def q8_g32(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    s = half_everywhere(b, scale)
    for start in range(0, 32, LANES):
        yield scaled(b, b.sext(load(b, BYTES, at(b, base, start)), INTS), s)


def t2_g128(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    s = half_everywhere(b, scale)
    for unit in range(128 // LANES):
        yield scaled(b, signed(b, spread(b, at(b, base, 2 * unit), 2), 2), s)


def q2_g64(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    s = half_everywhere(b, scale)
    for unit in range(64 // LANES):
        code = b.and_(spread(b, at(b, base, 2 * unit), 2), every(INTS, 3))
        yield scaled(b, b.sub(code, every(INTS, 1)), s)


def e4m3(b: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    """E4M3FN bytes as fp32 lanes, each 2^-8 of its value: as binary16 its exponent is eight too small."""
    count = codes.type.count
    words = ir.VectorType(I16, count)
    # the sign ends up twice, once where the exponent's highest bit has to be zero
    halves = b.and_(b.shl(b.sext(codes, words), every(words, 7)), every(words, 0xBF80))
    return b.fpext(b.bitcast(halves, ir.VectorType(F16, count)), ir.VectorType(F32, count))


def fp8_row(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    """``scale`` in every lane. One of 2^120 and more, which no row of finite weights has, overflows."""
    s = b.fmul(scale, ir.Constant(VEC, [256.0] * LANES))
    for start in range(0, 32, LANES):
        yield b.fmul(e4m3(b, load(b, BYTES, at(b, base, start))), s)


def fp8_row_bf16(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    word = b.shl(b.zext(load(b, I16, scale), I32), ir.Constant(I32, 16))
    return fp8_row(b, base, splat(b, b.bitcast(word, F32)))


def fp8_row_fp16(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    return fp8_row(b, base, half_everywhere(b, scale))


E2M1_TWICE = 0xC8643210  # twice the magnitude of code i is nibble i


def e2m1(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Eight E2M1 codes as fp32, each twice its value."""
    top = b.shl(splat(b, load(b, I32, address)), ir.Constant(INTS, [28 - 4 * lane for lane in range(LANES)]))
    index = b.and_(b.lshr(top, every(INTS, 26)), every(INTS, 28))
    magnitude = floats(b, b.and_(b.lshr(every(INTS, E2M1_TWICE), index), every(INTS, 15)))
    sign = b.and_(top, every(INTS, 1 << 31))
    return b.bitcast(b.or_(b.bitcast(magnitude, INTS), sign), VEC)


def nvfp4(b: ir.IRBuilder, base: ir.Value, scale: ir.Value) -> Iterator[ir.Value]:
    """Codes times block scales; the matrix's divisor is applied to the sums."""
    four = e4m3(b, load(b, ir.VectorType(I8, 4), scale))
    # 2^8 for the scale, 2^-1 for the code
    steps = b.fmul(four, every(four.type, 128.0))
    undefined = ir.Constant(four.type, ir.Undefined)
    for group in range(4):
        step = b.shuffle_vector(steps, undefined, every(INTS, group))
        for unit in range(2):
            yield b.fmul(e2m1(b, at(b, base, 8 * group + 4 * unit)), step)


UNPACK_PLANES: dict[str, UnpackPlanes] = {
    "q2_g64": q2_g64,
    "t2_g128": t2_g128,
    "q4_g64": q4_g64,
    "q5_g64": q5_g64,
    "q6_g64": q6_g64,
    "q8_g32": q8_g32,
    "fp8_row_bf16": fp8_row_bf16,
    "fp8_row_fp16": fp8_row_fp16,
    "nvfp4": nvfp4,
}
