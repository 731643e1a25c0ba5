"""Products with matrices, tables of tokens, and every launch that chooses its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ninfer_kernels import linear, paged_attention, tiled_linear
from ninfer_kernels.linear.gpu import FEW_ROWS_BLOCKS
from ninfer_kernels.paged_attention import Rows, Stored
from ninfer_kernels.paged_attention.blocks import ATTEND
from ninfer_kernels.tiled_linear import FORMATS, TiledLinear, TileFormat
from ninfer_kernels.tiled_linear import gpu as tiled
from ninfer_kernels.tiled_linear.blocks import few_rows_blocks, random_tiles
from ninfer_kernels.tuning import Shape, Tunable
from ninfer_qwen35.config import Qwen35Config

from .case import ROUNDED, Case, Inputs, Result, Sizes, as_type, sized

TILED_TESTS = "test_tiled_linear.py"
TABLES = ("q4_g64", "q8_g32")  # formats that tables of tokens are stored in
CHECKED = 4  # tokens of a step, its last ones


def cases(sizes: Sizes) -> Iterator[Case]:
    dense, sparse = matrices(sizes.dense), matrices(sizes.sparse)
    for shape in (*dense, *sparse):
        yield tuned(
            sizes, FEW_ROWS_BLOCKS, shape, "test_linear.py", lambda inputs: linear.reference.linear(*inputs),
            beside={"torch": lambda inputs: torch.mm(inputs[0], inputs[1].t())},
        )  # fmt: skip
    for form in FORMATS.values():
        for shape in dense:
            tunable = few_rows_blocks(form)
            yield tuned(sizes, tunable, shape, TILED_TESTS, lambda inputs: tiled_linear.reference.linear(*inputs))
        yield decoded(sizes, form)
    for name in TABLES:
        for T in (1, sizes.chunk) if name == TABLES[-1] else (1,):
            yield taken(sizes, FORMATS[name], T)
    for model in sizes.models.values():
        a = model.attention
        for BQ in (16, 128):
            shape = {"H": a.heads, "G": a.kv_heads, "D": a.head_dim, "BQ": BQ, "bytes": sizes.dtype.itemsize}
            yield tuned(
                sizes, ATTEND, shape, "test_paged_attention_gpu.py", attended, lambda inputs, result: result[-CHECKED:]
            )


def tuned(
    sizes: Sizes,
    tunable: Tunable,
    shape: Shape,
    tests: str,
    reference: Callable[[Inputs], Result],
    compared: Callable[[Inputs, Result], Result] = lambda inputs, result: result,
    beside: dict[str, Callable[[Inputs], Result]] | None = None,
) -> Case:
    """A launch with the blocks its shape has on the device, as a search times it."""

    def make(generator: torch.Generator) -> Inputs:
        return as_type(tunable.inputs(shape, generator.device, generator), sizes.dtype)

    def run(inputs: Inputs) -> Tensor:
        device = next(one.device for one in inputs if isinstance(one, Tensor))
        return tunable.run(inputs, tunable.blocks(device, **shape))

    return Case(
        op=tunable.name, shape="-".join(f"{key}{value}" for key, value in shape.items()), tests=tests, make=make,
        run=run, reference=reference, compared=compared, moved=lambda inputs, result: sized((inputs, result)),
        beside=beside or {},
    )  # fmt: skip


def matrices(model: Qwen35Config) -> list[dict[str, int]]:
    """Of a dense model gate and up, then the projections of its layers; of another only those."""
    N, a, g = model.hidden_size, model.attention, model.gdn
    inner = model.intermediate_size
    found = [
        *([(2 * inner, N)] if inner else []),
        (g.channels + g.value_width + 2 * g.value_heads, N),
        (N, inner) if inner else (2 * (a.heads + a.kv_heads) * a.head_dim, N),
        (N, g.value_width),
    ]
    return [{"N": rows, "K": columns} for rows, columns in found]


def decoded(sizes: Sizes, form: TileFormat) -> Case:
    """As many numbers as are made at a time for a product with many rows."""
    N, K = sizes.decoded, sizes.dense.hidden_size

    def run(inputs: Inputs) -> Tensor:
        (tiles,) = inputs
        return tiled.decode(tiles, 0, torch.empty(N, K, dtype=sizes.dtype, device=tiles.codes.device))

    return Case(
        op="tiled_linear.decode", shape=f"{form.name}-N{N}-K{K}", tests=TILED_TESTS, run=run, tolerance=ROUNDED,
        make=lambda generator: (random_tiles(form, N, K, generator.device, generator),),
        reference=lambda inputs: tiled_linear.reference.decode(*inputs).to(sizes.dtype),
    )  # fmt: skip


def taken(sizes: Sizes, form: TileFormat, T: int) -> Case:
    """The rows of ``T`` tokens out of a table."""
    V, K = sizes.table_rows, sizes.dense.hidden_size

    def make(generator: torch.Generator) -> Inputs:
        ids = torch.randint(1, V, (T,), generator=generator, device=generator.device)
        return random_tiles(form, V, K, generator.device, generator), ids

    def moved(inputs: Inputs, result: Result) -> int:
        tiles, ids = inputs
        return tiles.nbytes // V * T + ids.nbytes + sized(result)

    return Case(
        op="tiled_linear.take_rows", shape=f"{form.name}-V{V}-K{K}-T{T}", tests=TILED_TESTS, make=make, moved=moved,
        run=lambda inputs: TiledLinear(inputs[0]).take_rows(inputs[1], sizes.dtype),
        reference=lambda inputs: tiled_linear.reference.decode(inputs[0])[inputs[1]].to(sizes.dtype),
        tolerance=ROUNDED,
    )  # fmt: skip


def attended(inputs: Inputs) -> Tensor:
    """The definition for the last tokens of the step."""
    q, keys, values, rows, _ = inputs
    width, first = len(q), max(0, len(q) - CHECKED)
    sides = (Stored((plane,), lambda planes: planes[0].float(), is_cast=True) for plane in (keys, values))
    last = Rows((0, width - first), (rows.frontiers[0] + first,), rows.page_table)
    return paged_attention.reference.attend(q[first:], *sides, last, q.shape[2] ** -0.5)
