"""The PTX texts that make bf16 of packed codes, carried out here: the interpreter has no registers to run them in."""

import operator
import random
import struct

import pytest

from ninfer_kernels.tiled_linear import assembly

WORD = 0xFFFFFFFF
PLAIN = {"shr.u32": operator.rshift, "shl.b32": lambda a, b: a << b & WORD, "and.b32": operator.and_}


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def bits_of(value):
    """bf16, to nearest and ties to even."""
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    return word + 0x7FFF + (word >> 16 & 1) >> 16


def lop3(a, b, c, table):
    return sum((table >> (a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1) & 1) << i for i in range(32))


def fma_twice(a, b, c):
    halves = ((x & 0xFFFF, x >> 16) for x in (a, b, c))
    low, high = (bits_of(number(x) * number(y) + number(z)) for x, y, z in zip(*halves, strict=True))
    return low | high << 16


def carry_out(text, sources, results):
    """The pairs of numbers in the result registers, low half first."""
    registers = {f"${results + i}": word for i, word in enumerate(sources)}

    def value(name):
        return int(name, 0) if name[0].isdigit() else registers[name]

    for line in getattr(text, "value", text).strip("{}\n").splitlines():
        operation, operands = line.rstrip(";").split(" ", 1)
        if operation == ".reg":
            continue
        to, *names = operands.split(", ")
        values = [value(name) for name in names]
        if operation == "mov.b32":
            registers[to] = values[0]
        elif operation == "lop3.b32":
            registers[to] = lop3(*values)
        elif operation == "fma.rn.bf16x2":
            registers[to] = fma_twice(*values)
        else:
            registers[to] = PLAIN[operation](*values)
    return [[number(registers[f"${i}"] & 0xFFFF), number(registers[f"${i}"] >> 16)] for i in range(results)]


def word(codes):
    return int.from_bytes(bytes(codes), "little")


def in_registers(of):
    """``of(byte, half)`` in the order of the results: low nibbles of bytes 0 and 2, of 1 and 3, then the high ones."""
    return [[of(0, half), of(2, half)] if i == 0 else [of(1, half), of(3, half)] for half in (0, 1) for i in (0, 1)]


CODES = [random.Random(seed).choices(range(256), k=8) for seed in range(60)] + [[0] * 8, [255] * 8, [0x7F, 0x80] * 4]


def test_nibbles():
    for codes in CODES:

        def meant(byte, half, codes=codes):
            return (codes[byte] >> 4 * half & 15) - 8

        assert carry_out(assembly.NIBBLES, [word(codes[:4])], 4) == in_registers(meant)


NUMBERS = [random.Random(seed).choices(range(64), k=8) for seed in range(60)] + [[0] * 8, [63] * 8]


@pytest.mark.parametrize("bits", [5, 6])
def test_numbers_in_halves(bits):
    """Of a group's four numbers in each half, beside anything the other groups have in the same word of ``more``."""
    texts = {5: assembly.FIVES, 6: assembly.SIXES}[bits].value
    for numbers in NUMBERS:
        halves = [[number & (1 << bits) - 1 for number in numbers[4 * h : 4 * h + 4]] for h in (0, 1)]
        codes = 0
        for h, (a, b, c, d) in enumerate(halves):
            last = d >> 4 << 15 if bits == 5 else 0
            codes |= (a | b << bits | (c if bits == 5 else c >> 2) << 2 * bits | last) << 16 * h
        for group, text in enumerate(texts):
            more, own = random.Random(group).getrandbits(32), 4 if bits == 5 else 8
            for h, (_, _, c, d) in enumerate(halves):
                left = d & 15 if bits == 5 else d | (c & 3) << 6
                at = 16 * h + own * group
                more = more & ~(((1 << own) - 1) << at) | left << at
            expected = [[halves[h][i] - (1 << bits - 1) for h in (0, 1)] for i in (0, 2, 1, 3)]
            assert carry_out(text, [codes, more], 4) == expected


def test_bytes_in_twos_complement():
    for codes in CODES:
        signed = [code - 256 if code > 127 else code for code in codes]
        expected = [[signed[0], signed[2]], [signed[1], signed[3]]]
        assert carry_out(assembly.EIGHTS, [word(codes[:4])], 2) == expected


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if code & 128 else size


def test_e4m3():
    for codes in ([code & ~1 if code & 127 == 127 else code for code in codes] for codes in CODES):
        expected = [[e4m3(codes[0]), e4m3(codes[2])], [e4m3(codes[1]), e4m3(codes[3])]]
        assert carry_out(assembly.E4M3, [word(codes[:4])], 2) == expected


def test_e2m1_times_a_scale():
    sizes = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    factor = bits_of(2.0**118 * 0.25)  # the bits of E2M1 in their places are 2 ** -126 of the number
    scale = factor | factor << 16
    for codes in CODES:

        def meant(byte, half, codes=codes):
            code = codes[byte] >> 4 * half & 15
            size = sizes[code & 7] * 0.25 * 2.0**-8
            return -size if code & 8 else size

        assert carry_out(assembly.E2M1_SCALED, [word(codes[:4]), scale, scale], 4) == in_registers(meant)
