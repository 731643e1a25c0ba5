"""The native kernels over block matrices: decode, a few activation rows, many activation rows.

Every kernel is ``void f(int64_t *arguments)`` run by several threads at once; they take chunks of output rows from one
atomic counter, so a thread that was held up takes fewer. Both products are formed in one order whatever the number of
activation rows, an accumulator of eight lanes walked along K and then folded: a token's result does not depend on what
it was batched with, nor on whether it was prefilled or decoded.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from .blocks import Block
from .jit import F32, I64, LANES, PTR, VEC, Native, Values, at, fma, i64, load, loop, total
from .planes import FORMATS, SCALE_TILE_ROWS
from .unpack import UNPACK
from .unpack_planes import UNPACK_PLANES

FEW = 4  # activation rows a block is unpacked for at once
TILE_ROWS, TILE_TOKENS = 4, 3  # the register tile of ``many``: 12 accumulators of 16 registers


class Arg(enum.IntEnum):
    """The slots of a kernel's arguments, int64 each."""

    X = 0  # activations, [T, K] fp32
    Y = 1  # results, [T, N] fp32; for ``decode`` [rows, K]
    CHUNKS = 2  # [chunks, CHUNK] int64: address of the first block, first output row, rows, the other planes
    CHUNK_COUNT = 3
    NEXT_CHUNK = 4  # counts up
    ROW_BLOCKS = 5
    N = 6
    T = 7
    SCRATCH = 8  # [threads, floats] fp32
    SCRATCH_FLOATS = 9
    NEXT_SCRATCH = 10  # counts up
    STRIDE = 11  # bytes from row to row in each of PLANES_AT_MOST planes


PLANES_AT_MOST = 3
CHUNK = 5
"""Words of a chunk's entry. A further plane is there with its address at the chunk's first row; nvfp4's tiles with
the address of the whole plane, and then the number of that row in the matrix."""


def slots(
    *,
    y: int,
    chunks: int,
    count: int,
    blocks: int,
    strides: Sequence[int],
    x: int = 0,
    rows: int = 0,
    tokens: int = 0,
    scratch: int = 0,
    scratch_floats: int = 0,
) -> ctypes.Array[ctypes.c_int64]:
    """A kernel's arguments, counters at zero; made anew for every call, since the threads count in them."""
    return SLOTS(x, y, chunks, count, 0, blocks, rows, tokens, scratch, scratch_floats, 0, *strides)


SLOTS = ctypes.c_int64 * (Arg.STRIDE + PLANES_AT_MOST)


class Frame:
    """The start of a kernel: its arguments as values, and the loop over chunks."""

    def __init__(self, format: str, name: str) -> None:
        self.block: Block = FORMATS[format]
        self.unpack = {**UNPACK, **UNPACK_PLANES}[format]
        self.tiled = format == "nvfp4"
        self.module = ir.Module(name)
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR]), name)
        self.b = b = ir.IRBuilder(function.append_basic_block("entry"))
        self.arguments = function.args[0]
        self.x, self.y, self.chunks, self.scratch = (
            b.inttoptr(self[slot], PTR) for slot in (Arg.X, Arg.Y, Arg.CHUNKS, Arg.SCRATCH)
        )
        self.row_blocks, self.n, self.t = self[Arg.ROW_BLOCKS], self[Arg.N], self[Arg.T]
        self.k = b.mul(self.row_blocks, i64(self.block.values))
        self.steps = (self.block.bytes, *self.block.others)
        self.strides = [self[Arg.STRIDE + plane] for plane in range(len(self.steps))]

    def __getitem__(self, slot: int) -> ir.Value:
        return self.b.load(at(self.b, self.arguments, int(slot), I64), typ=I64)

    def take(self, slot: Arg) -> ir.Value:
        """The counter's next value, no other thread's."""
        return self.b.atomic_rmw("add", at(self.b, self.arguments, int(slot), I64), i64(1), "monotonic")

    def each_chunk(self, body: Callable[[Values, ir.Value, ir.Value], None]) -> None:
        """``body(the planes' words, first output row, rows)`` for each chunk taken; ends the function."""
        b = self.b
        head, inside, after = (b.append_basic_block(name) for name in ("next", "chunk", "done"))
        count = self[Arg.CHUNK_COUNT]
        b.branch(head)
        b.position_at_end(head)
        index = self.take(Arg.NEXT_CHUNK)
        b.cbranch(b.icmp_signed("<", index, count), inside, after)
        b.position_at_end(inside)
        entry = at(b, self.chunks, b.mul(index, i64(CHUNK)), I64)
        data, row, rows, *others = (b.load(at(b, entry, slot, I64), typ=I64) for slot in range(CHUNK))
        body([data, *others], row, rows)
        b.branch(head)
        b.position_at_end(after)
        b.ret_void()

    def values(self, planes: Values, row: ir.Value, i: ir.Value) -> Iterator[ir.Value]:
        """Block ``i`` of a chunk's row, eight values at a time."""
        b = self.b
        places = []
        for plane, (word, step, stride) in enumerate(zip(planes, self.steps, self.strides, strict=False)):
            if plane and self.tiled:
                row = b.add(planes[plane + 1], row)
                offset = self.tile_offset(row, stride)
            else:
                offset = b.mul(row, stride)
            places.append(at(b, b.inttoptr(word, PTR), b.add(offset, b.mul(i, i64(step)))))
        return self.unpack(b, *places)

    def tile_offset(self, row: ir.Value, stride: ir.Value) -> ir.Value:
        """Where a row's scales begin: its row of tiles, then (row % 32) * 16 + (row % 128 / 32) * 4."""
        b = self.b
        within = b.urem(row, i64(SCALE_TILE_ROWS))
        place = b.add(b.mul(b.urem(within, i64(32)), i64(16)), b.mul(b.udiv(within, i64(32)), i64(4)))
        return b.add(b.mul(b.udiv(row, i64(SCALE_TILE_ROWS)), stride), place)

    def unpack_rows(self, planes: Values, rows: ir.Value, out: ir.Value) -> None:
        """A chunk's rows as fp32 at ``out``, [rows, K]."""
        b = self.b

        def row(r: ir.Value, _: Values) -> Values:
            target = at(b, out, b.mul(r, self.k), F32)

            def one(i: ir.Value, _: Values) -> Values:
                place = at(b, target, b.mul(i, i64(self.block.values)), F32)
                for unit, vector in enumerate(self.values(planes, r, i)):
                    b.store(vector, at(b, place, unit * LANES, F32), align=4)
                return []

            loop(b, self.row_blocks, [], one)
            return []

        loop(b, rows, [], row)


def row_groups(b: ir.IRBuilder, rows: ir.Value, size: int, body: Callable[[ir.Value, int], None]) -> None:
    """``body(first, size)`` over whole groups, then ``body(first, 1)`` over the rest."""
    whole = b.udiv(rows, i64(size))

    def group(i: ir.Value, _: Values) -> Values:
        body(b.mul(i, i64(size)), size)
        return []

    loop(b, whole, [], group)
    done = b.mul(whole, i64(size))

    def single(i: ir.Value, _: Values) -> Values:
        body(b.add(done, i), 1)
        return []

    loop(b, b.sub(rows, done), [], single)


@functools.cache
def decode(format: str) -> Native:
    """Y[row, :] = the decoded row."""
    f = Frame(format, f"decode_{format}")
    f.each_chunk(lambda planes, row, rows: f.unpack_rows(planes, rows, at(f.b, f.y, f.b.mul(row, f.k), F32)))
    return Native(f.module, f"decode_{format}")


@functools.cache
def few(format: str, tokens: int) -> Native:
    """Y = X W^T for exactly ``tokens`` rows of X; blocks are unpacked into registers and never stored."""
    f = Frame(format, f"few_{format}_{tokens}")
    b, size = f.b, 2
    zero = ir.Constant(VEC, [0.0] * LANES)

    def dot(planes: Values, first: ir.Value, out: ir.Value, rows: int) -> None:
        """``rows`` adjacent rows of a chunk from ``first`` on; ``out`` is the output row of that one."""

        def step(i: ir.Value, acc: Values) -> Values:
            acc = list(acc)
            column = b.mul(i, i64(f.block.values))
            blocks = [f.values(planes, b.add(first, i64(r)), i) for r in range(rows)]
            # 32 values of each row in turn: short enough to stay in registers, long enough to hide latencies
            for start in range(0, f.block.values, 32):
                for r, vectors in enumerate(blocks):
                    for unit in range(start, start + 32, LANES):
                        weights = next(vectors)
                        for t in range(tokens):
                            place = b.add(b.mul(f.k, i64(t)), b.add(column, i64(unit)))
                            x = load(b, VEC, at(b, f.x, place, F32))
                            acc[r * tokens + t] = fma(b, weights, x, acc[r * tokens + t])
            return acc

        acc = loop(b, f.row_blocks, [zero] * (rows * tokens), step)
        for r in range(rows):
            for t in range(tokens):
                place = b.add(b.mul(f.n, i64(t)), b.add(out, i64(r)))
                b.store(total(b, acc[r * tokens + t]), at(b, f.y, place, F32), align=4)

    def chunk(planes: Values, row: ir.Value, rows: ir.Value) -> None:
        row_groups(b, rows, size, lambda first, r: dot(planes, first, b.add(row, first), r))

    f.each_chunk(chunk)
    return Native(f.module, f"few_{format}_{tokens}")


@functools.cache
def many(format: str) -> Native:
    """Y = X W^T for any number of rows of X; a chunk's rows are decoded once into the thread's scratch."""
    f = Frame(format, f"many_{format}")
    b = f.b
    zero = ir.Constant(VEC, [0.0] * LANES)
    panel = at(b, f.scratch, b.mul(f.take(Arg.NEXT_SCRATCH), f[Arg.SCRATCH_FLOATS]), F32)
    steps = b.udiv(f.k, i64(LANES))

    def tile(first_row: ir.Value, out: ir.Value, first_token: ir.Value, rows: int, tokens: int) -> None:
        w = [at(b, panel, b.mul(b.add(first_row, i64(r)), f.k), F32) for r in range(rows)]
        x = [at(b, f.x, b.mul(b.add(first_token, i64(t)), f.k), F32) for t in range(tokens)]

        def step(i: ir.Value, acc: Values) -> Values:
            acc = list(acc)
            column = b.mul(i, i64(LANES))
            xs = [load(b, VEC, at(b, base, column, F32)) for base in x]
            for r in range(rows):
                weights = load(b, VEC, at(b, w[r], column, F32))
                for t in range(tokens):
                    acc[r * tokens + t] = fma(b, weights, xs[t], acc[r * tokens + t])
            return acc

        acc = loop(b, steps, [zero] * (rows * tokens), step)
        for r in range(rows):
            for t in range(tokens):
                row = b.add(out, b.add(first_row, i64(r)))
                place = b.add(b.mul(b.add(first_token, i64(t)), f.n), row)
                b.store(total(b, acc[r * tokens + t]), at(b, f.y, place, F32), align=4)

    def chunk(planes: Values, row: ir.Value, rows: ir.Value) -> None:
        f.unpack_rows(planes, rows, panel)
        row_groups(
            b,
            f.t,
            TILE_TOKENS,
            lambda token, tokens: row_groups(
                b, rows, TILE_ROWS, lambda first, count: tile(first, row, token, count, tokens)
            ),
        )

    f.each_chunk(chunk)
    return Native(f.module, f"many_{format}")
