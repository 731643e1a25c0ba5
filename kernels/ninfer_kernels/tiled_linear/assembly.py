"""PTX that makes bf16 of packed codes, two in a register (``unpack.py``). Needs compute capability 8.0.

Each text takes four bytes of a row in one register and gives their numbers in registers of two: bytes 0 and 2, then
1 and 3; where a byte holds two numbers, those of the low nibbles come before those of the high ones.
"""

import struct

import triton.language as tl

BASE = 128
"""The bits of a code under the exponent of 128 are 128 plus the code, up to seven bits."""

# result register, and how far the source is shifted to the right for it: low and high nibbles of bytes 0 and 2, then of
# bytes 1 and 3
PLACES = ((0, 0), (2, 4), (1, 8), (3, 12))


def _twice(value: float) -> str:
    """Two equal bf16 in a register."""
    word = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return f"0x{word:04x}{word:04x}"


def _program(*lines: str) -> tl.constexpr:
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


def _shift(to: str, source: str, right: int) -> str:
    if right > 0:
        return f"shr.u32 {to}, {source}, {right};"
    return f"shl.b32 {to}, {source}, {-right};"


def _nibbles(bits: int, first: int = 0) -> tl.constexpr:
    """Numbers of 4 + ``bits`` bits from nibbles ($4) and, from bit ``first`` of a byte ($5), the bits above them."""
    half = 1 << 3 + bits
    mask = ((1 << bits) - 1) << 4
    lines = [
        ".reg .b32 t, low, high, one, base, bias;",
        "mov.b32 low, 0x000f000f;",
        f"mov.b32 high, 0x{mask:04x}{mask:04x};",
        f"mov.b32 base, {_twice(BASE)};",
        f"mov.b32 one, {_twice(1.0)};",
        f"mov.b32 bias, {_twice(-BASE - half)};",
    ]
    for result, right in PLACES:
        lines += [_shift("t", "$4", right), f"lop3.b32 ${result}, t, low, base, 0xea;"]
    for result, right in PLACES if bits else ():
        # the bits of byte 1 lie 8 higher; those of the high nibble follow those of the low one
        at = first + (right & 8) + (bits if right & 4 else 0)
        lines += [_shift("t", "$5", at - 4), f"lop3.b32 ${result}, t, high, ${result}, 0xea;"]
    lines += [f"fma.rn.bf16x2 ${result}, ${result}, one, bias;" for result, _ in PLACES]
    return _program(*lines)


NIBBLES = _nibbles(0)
FIVES = tl.constexpr(tuple(_nibbles(1, 2 * i).value for i in range(4)))
SIXES = tl.constexpr(tuple(_nibbles(2, 4 * i).value for i in range(2)))

EIGHTS = _program(
    # seven bits, less 128 or, where the sign is set, 256
    ".reg .b32 t, c, low, sign, base, minus;",
    "mov.b32 low, 0x007f007f;",
    "mov.b32 sign, 0x00800080;",
    f"mov.b32 base, {_twice(BASE)};",
    f"mov.b32 minus, {_twice(-1.0)};",
    "lop3.b32 $0, $2, low, base, 0xea;",
    "lop3.b32 c, $2, sign, base, 0xea;",
    "fma.rn.bf16x2 $0, c, minus, $0;",
    "shr.u32 t, $2, 8;",
    "lop3.b32 $1, t, low, base, 0xea;",
    "lop3.b32 c, t, sign, base, 0xea;",
    "fma.rn.bf16x2 $1, c, minus, $1;",
)

E4M3 = _program(
    # the bits in their places are 2 ** -120 of the number, subnormal ones included
    ".reg .b32 t, u, low, sign, up;",
    "mov.b32 low, 0x07f007f0;",
    "mov.b32 sign, 0x80008000;",
    f"mov.b32 up, {_twice(2.0**120)};",
    "shl.b32 t, $2, 4;",
    "and.b32 t, t, low;",
    "shl.b32 u, $2, 8;",
    "lop3.b32 t, u, sign, t, 0xea;",
    "fma.rn.bf16x2 $0, t, up, sign;",
    "shr.u32 t, $2, 4;",
    "and.b32 t, t, low;",
    "lop3.b32 t, $2, sign, t, 0xea;",
    "fma.rn.bf16x2 $1, t, up, sign;",
)


def _scaled() -> tl.constexpr:
    """E2M1 ($4) times bf16 ($5 for bytes 0 and 1, $6 for 2 and 3, all of them equal)."""
    lines = [".reg .b32 t, u, low, sign;", "mov.b32 low, 0x01c001c0;", "mov.b32 sign, 0x80008000;"]
    for result, right in PLACES:
        lines += [
            _shift("t", "$4", right - 6),
            "and.b32 t, t, low;",
            _shift("u", "$4", right - 12),
            "lop3.b32 t, u, sign, t, 0xea;",
            f"fma.rn.bf16x2 ${result}, t, $5, sign;",
        ]
    return _program(*lines)


E2M1_SCALED = _scaled()
