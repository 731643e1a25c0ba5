"""From a tile's bytes to numbers, in Triton: one function per format, handed to the kernels as it is.

``unpack(codes, more, i, o_n, NUM, ASM)`` gives rows ``o_n`` of group ``i`` of a chunk, [rows, columns of a group], as
numbers of type NUM, all of them exact; scales per group and factors per row are the kernels'. ``codes`` and ``more``
point at the chunk's bytes in both planes (``tiles.py`` says how they lie). A plugin's own format has such a function.

With ASM two bf16 are made at once in a register: the bits of a code are put under the exponent of 128, and what stands
too high is subtracted. A register holds four bytes of a row, and the numbers of bytes 0 and 2 come out together, as do
those of 1 and 3; of formats in halves each half holds numbers of every result. Without ASM the same numbers are made
one by one.
"""

import triton
import triton.language as tl

from .assembly import E2M1_SCALED, E4M3, EIGHTS, FIVES, NIBBLES, SIXES

TILE: tl.constexpr = tl.constexpr(64)  # rows


@triton.jit
def in_order(C: tl.constexpr):
    """The columns of a group as they are."""
    return tl.arange(0, C)


@triton.jit
def by_scale(C: tl.constexpr):
    """Eight columns of every 16 first, then the other eight: those of one scale stay with one thread."""
    o = tl.arange(0, C)
    return tl.max_contiguous(tl.multiple_of((o & 7) + ((o >> 3) & 3) * 16 + (o >> 5) * 8, 8), 8)


@triton.jit
def bytes_at(plane, o_n, C: tl.constexpr, ASM: tl.constexpr):
    """C bytes of some rows, [rows, C]; in the order of their columns where no register puts them right."""
    o = tl.arange(0, C)
    if not ASM:
        o = (o & ~3) + (o & 1) * 2 + ((o >> 1) & 1)
    return tl.load(plane + o_n[:, None] * C + o[None, :])


@triton.jit
def side_by_side(first, second):
    """Two [R, C] -> [R, 2 C], each half staying with the thread that holds it."""
    return tl.join(first, second).permute(0, 2, 1).reshape(first.shape[0], 2 * first.shape[1])


@triton.jit
def q4(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """Nibbles, the number plus 8."""
    b = bytes_at(codes + i * (TILE * 32), o_n, 32, ASM)
    if ASM:
        first, second = tl.inline_asm_elementwise(
            NIBBLES, "=&r,=&r,=&r,=&r,r", [b], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        first, second = (b & 15).to(NUM) - 8, (b >> 4).to(NUM) - 8
    return side_by_side(first, second)


@triton.jit
def halves_at(plane, o_n):
    """The 16 bits that a column's number lies in, of 32 bytes of some rows and for each of 32 columns, [rows, 32]
    int32; and whether the column is of the second two of four."""
    o = tl.arange(0, 32)
    at = plane + o_n[:, None] * 32 + ((o & ~3) + (o & 1) * 2)[None, :]
    return tl.load(at).to(tl.int32) | tl.load(at + 1).to(tl.int32) << 8, ((o >> 1) & 1)[None, :] == 1


@triton.jit
def q5(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """Halves of four numbers (``tiles.py``), four bits of the last in ``more``; the number plus 16."""
    codes += i * (TILE * 32)
    if ASM:
        first, second = tl.inline_asm_elementwise(
            FIVES[i], "=&r,=&r,=&r,=&r,r,r", [bytes_at(codes, o_n, 32, ASM), bytes_at(more, o_n, 32, ASM)],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        b, late = halves_at(codes, o_n)
        h, _ = halves_at(more, o_n)
        h = (h >> 4 * i) & 15
        first = tl.where(late, b >> 10, b) & 31
        second = tl.where(late, h | (b >> 15) << 4, (b >> 5) & 31)
        first, second = first.to(NUM) - 16, second.to(NUM) - 16
    return side_by_side(first, second)


@triton.jit
def q6(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """Halves of four numbers (``tiles.py``), eight bits of the last two in ``more``, two groups a plane; the number
    plus 32."""
    codes += i * (TILE * 32)
    more += (i // 2) * (TILE * 32)
    if ASM:
        first, second = tl.inline_asm_elementwise(
            SIXES[i % 2], "=&r,=&r,=&r,=&r,r,r", [bytes_at(codes, o_n, 32, ASM), bytes_at(more, o_n, 32, ASM)],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        b, late = halves_at(codes, o_n)
        h, _ = halves_at(more, o_n)
        h = (h >> 8 * (i % 2)) & 255
        first = tl.where(late, (b >> 12) << 2 | h >> 6, b & 63)
        second = tl.where(late, h & 63, (b >> 6) & 63)
        first, second = first.to(NUM) - 32, second.to(NUM) - 32
    return side_by_side(first, second)


@triton.jit
def q8(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """Two's complement."""
    b = bytes_at(codes + i * (TILE * 32), o_n, 32, ASM)
    if ASM:
        return tl.inline_asm_elementwise(EIGHTS, "=&r,=&r,r", [b], dtype=tl.bfloat16, is_pure=True, pack=4)
    return b.to(tl.int8, bitcast=True).to(NUM)


@triton.jit
def fp8(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """E4M3."""
    b = bytes_at(codes + i * (TILE * 64), o_n, 64, ASM)
    if ASM:
        return tl.inline_asm_elementwise(E4M3, "=&r,=&r,r", [b], dtype=tl.bfloat16, is_pure=True, pack=4)
    return e4m3(b).to(NUM)


@triton.jit
def nvfp4(codes, more, i: tl.constexpr, o_n, NUM: tl.constexpr, ASM: tl.constexpr):
    """E2M1 times the E4M3 scale of its 16 columns times 2 ** -8: six bits, exact in bf16. Bytes 8 j to 8 j + 7 have
    scale ``j``."""
    b = bytes_at(codes + i * (TILE * 32), o_n, 32, ASM)
    b_s = e4m3(tl.load(more + i * (TILE * 4) + o_n[:, None] * 4 + tl.arange(0, 4)[None, :]))
    if ASM:
        # the bits of E2M1 in their places are 2 ** -126 of the number
        b_s = (b_s * 3.3230699894622897e35).to(tl.bfloat16)  # 2 ** 118
        b_s = tl.broadcast_to(b_s[:, :, None], (o_n.shape[0], 4, 8)).reshape(o_n.shape[0], 32)
        first, second = tl.inline_asm_elementwise(
            E2M1_SCALED, "=&r,=&r,=&r,=&r,r,r,r", [b, b_s], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        b_s = tl.broadcast_to(b_s[:, :, None] * 0.00390625, (o_n.shape[0], 4, 8)).reshape(o_n.shape[0], 32)
        first, second = (e2m1(b & 15) * b_s).to(NUM), (e2m1(b >> 4) * b_s).to(NUM)
    return side_by_side(first, second)


@triton.jit
def e4m3(b):
    """An E4M3 code in fp32: its bits in their places are 2 ** -120 of the number, subnormal ones included."""
    b = b.to(tl.int32)
    bits = ((b & 0x80) << 24) | ((b & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def e2m1(b):
    """An E2M1 code in fp32: its bits in their places are 2 ** -126 of the number."""
    b = b.to(tl.int32)
    bits = ((b & 8) << 28) | ((b & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
