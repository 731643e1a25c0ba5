"""PTX that makes bf16 of packed codes, two in a register (``unpack.py``). Needs compute capability 8.0.

Each text takes four bytes of a row in one register and gives their numbers in registers of two: bytes 0 and 2, then
1 and 3; where a byte holds two numbers, those of the low nibbles come before those of the high ones. Numbers of five
and six bits lie in halves of a register, as ``tiles.py`` says.
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


def _fields(bits: int, *parts: tuple[int, str, int, int, int]) -> tl.constexpr:
    """Numbers of ``bits`` bits, stored above zero. A part is a result register, the source that has some of its bits in
    both halves ($4: codes, $5: more), how far they are shifted to the right, and which bits of the number they are:
    the first, and how many."""
    half = 1 << bits - 1
    lines = [
        ".reg .b32 t, one, base, bias;",
        f"mov.b32 base, {_twice(BASE)};",
        f"mov.b32 one, {_twice(1.0)};",
        f"mov.b32 bias, {_twice(-BASE - half)};",
    ]
    begun: set[int] = set()
    for result, source, right, first, count in parts:
        if right:
            lines.append(_shift("t", source, right))
        mask = ((1 << count) - 1) << first
        under = f"${result}" if result in begun else "base"
        lines.append(f"lop3.b32 ${result}, {'t' if right else source}, 0x{mask:04x}{mask:04x}, {under}, 0xea;")
        begun.add(result)
    lines += [f"fma.rn.bf16x2 ${result}, ${result}, one, bias;" for result in range(4)]
    return _program(*lines)


NIBBLES = _fields(4, *((result, "$4", right, 0, 4) for result, right in PLACES))
FIVES = tl.constexpr(
    tuple(
        _fields(
            5, (0, "$4", 0, 0, 5), (2, "$4", 5, 0, 5), (1, "$4", 10, 0, 5), (3, "$5", 4 * i, 0, 4), (3, "$4", 11, 4, 1)
        ).value
        for i in range(4)
    )
)
SIXES = tl.constexpr(
    tuple(
        _fields(
            6,
            (0, "$4", 0, 0, 6),
            (2, "$4", 6, 0, 6),
            (1, "$4", 10, 2, 4),
            (1, "$5", 8 * i + 6, 0, 2),
            (3, "$5", 8 * i, 0, 6),
        ).value
        for i in range(2)
    )
)
"""By the group that a word of ``more`` is read for."""

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
