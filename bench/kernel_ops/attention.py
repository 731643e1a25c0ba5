"""Attention over pages as the engine calls it, and the storing of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ninfer_core.api import KVDtype, KVGeometry
from ninfer_core.kv.cache import KVCache, LayerPool
from ninfer_kernels import paged_attention
from ninfer_kernels.paged_attention import PAGE_TOKENS, Rows, Stored
from ninfer_kernels.paged_attention.store import Slots
from ninfer_qwen35.config import Qwen35Config

from .case import MIXED, Case, Inputs, Result, Sizes, randn, sized

CHECKED = 8  # tokens of a step, its last ones: the definition goes through the keys of each


def cases(sizes: Sizes) -> Iterator[Case]:
    plain, coded = sizes.storages
    first, last = sizes.contexts[0], sizes.contexts[-1]
    for name, storage, R, W, C in (
        ("27b", plain, 1, 1, first),
        ("27b", plain, 1, 1, last),
        ("27b", plain, sizes.rows, 1, last),
        ("35b-a3b", plain, 1, 1, last),
        ("27b", coded, 1, 1, last),
        *(("27b", plain, 1, W, last) for W in sizes.widths),
    ):
        op = "paged_attention.verify" if W > 1 else "paged_attention.decode"
        yield attention(sizes, op, name, storage, R, W, C)
    for name, C in (("27b", 0), ("27b", last), ("35b-a3b", last)):
        yield attention(sizes, "paged_attention.prefill", name, plain, 1, sizes.chunk, C)
    for storage in sizes.storages:
        for T in (1, sizes.chunk):
            yield storing(sizes, storage, T)


def attention(sizes: Sizes, op: str, name: str, storage: str, R: int, W: int, C: int) -> Case:
    """``R`` rows of ``W`` tokens after ``C`` each."""
    model, many = sizes.models[name], max(sizes.widths) < W
    H, G, D = model.attention.heads, model.attention.kv_heads, model.attention.head_dim
    scale, step = D**-0.5, f"T{W}" if many else f"R{R}-W{W}"

    def make(generator: torch.Generator) -> Inputs:
        """Queries as a view of what was turned with the keys; the pages of a row lie anywhere."""
        pages = -(-(C + W) // PAGE_TOKENS)
        pool, k, v = filled(sizes.storages[storage], model, R * pages, generator)
        table = torch.randperm(R * pages, generator=generator, device=generator.device).view(R, pages)
        rows = Rows(tuple(range(0, R * W + 1, W)), (C,) * R, table)
        rows.on_device()  # uploaded here, where nothing is being recorded
        turned = randn(generator, R * W, H + G, D, dtype=sizes.dtype)
        dense = () if C or not many else tuple(in_order(side, table, W).to(sizes.dtype) for side in (k, v))
        return turned[:, :H], pool.keys, pool.values, rows, *dense

    def run(inputs: Inputs) -> Tensor:
        q, keys, values, rows, *_ = inputs
        return paged_attention.attend(q, keys, values, rows, scale, sizes.dtype)

    def reference(inputs: Inputs) -> Tensor:
        q, keys, values, rows, *_ = inputs
        if many:
            first = max(0, W - CHECKED)
            q, rows = q[first:], Rows((0, W - first), (C + first,), rows.page_table)
        return paged_attention.reference.attend(q, keys, values, rows, scale, sizes.dtype)

    def compared(inputs: Inputs, result: Result) -> Result:
        return result[-CHECKED:] if many else result

    def moved(inputs: Inputs, result: Result) -> int:
        return R * (C + W) * G * row_bytes(*inputs[1:3]) + inputs[0].nbytes + sized(result)

    def by_torch(inputs: Inputs) -> Tensor:
        q, *_, k, v = inputs
        return F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True
        )[0].transpose(0, 1)

    return Case(
        op=op, shape=f"{name}-{step}-C{C}-{storage}", tests="test_paged_attention_gpu.py", tolerance=MIXED,
        make=make, run=run, reference=reference, compared=compared, moved=moved,
        flops=4 * R * H * D * sum(range(C + 1, C + W + 1)) if many else 0,
        beside={"torch": by_torch} if many and not C else {},
    )  # fmt: skip


def storing(sizes: Sizes, storage: str, T: int) -> Case:
    """Keys and values of ``T`` tokens into their pages."""
    model = sizes.dense
    H, G, D = model.attention.heads, model.attention.kv_heads, model.attention.head_dim

    def make(generator: torch.Generator) -> Inputs:
        """Values as a view of their projection."""
        pages = -(-T // PAGE_TOKENS) + 1
        pool, *_ = filled(sizes.storages[storage], model, pages, generator)
        slots = torch.randperm(pages * PAGE_TOKENS, generator=generator, device=generator.device)[:T]
        # as a model that computes in bf16 has them, whatever carries them here
        turned, stack = (
            randn(generator, T, heads, D, dtype=torch.bfloat16).to(sizes.dtype) for heads in (H + G, 2 * (H + G))
        )
        return turned[:, H:], stack[:, 2 * H + G :], pool.keys, pool.values, slots

    def run(inputs: Inputs) -> Result:
        paged_attention.store.store(*inputs[:4], Slots(inputs[4]))
        return planes(inputs)

    def reference(inputs: Inputs) -> Result:
        paged_attention.store.reference(*inputs[:4], Slots(inputs[4]))
        return planes(inputs)

    def moved(inputs: Inputs, result: Result) -> int:
        k, v, keys, values, slots = inputs
        return k.nbytes + v.nbytes + slots.nbytes + T * G * row_bytes(keys, values)

    return Case(
        op="paged_attention.store", shape=f"27b-T{T}-{storage}", tests="test_kv_store.py", tolerance=0.0,
        make=make, run=run, reference=reference, moved=moved,
    )  # fmt: skip


def filled(
    dtype: KVDtype, model: Qwen35Config, pages: int, generator: torch.Generator
) -> tuple[LayerPool, Tensor, Tensor]:
    """One layer's pages, every place of them taken, and the keys and values there by slot, [pages * P, G, D]."""
    G, D = model.attention.kv_heads, model.attention.head_dim
    (pool,) = KVCache(KVGeometry(heads=(G,), head_dims=(D,)), dtype, pages, generator.device, False).layers
    k, v = (randn(generator, pages * PAGE_TOKENS, G, D, dtype=torch.bfloat16) for _ in "kv")
    slots = torch.arange(pages * PAGE_TOKENS, device=generator.device)
    paged_attention.store.reference(k, v, pool.keys, pool.values, Slots(slots))
    return pool, k, v


def in_order(stored: Tensor, table: Tensor, tokens: int) -> Tensor:
    """The first row's ``tokens`` one after another, heads first: [G, tokens, D]."""
    pages = stored.unflatten(0, (-1, PAGE_TOKENS))[table[0]]
    return pages.flatten(0, 1)[:tokens].transpose(0, 1).contiguous()


def row_bytes(*sides: Stored) -> int:
    """Of one token and head."""
    return sum(plane.shape[-1] * plane.itemsize for side in sides for plane in side.planes)


def planes(inputs: Inputs) -> tuple[Tensor, ...]:
    return *inputs[2].planes, *inputs[3].planes
