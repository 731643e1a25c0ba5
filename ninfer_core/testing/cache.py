"""The plainest ``api.nn.Cache``: what the paged one must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import KVCodec, KVDtype, KVGeometry
from ninfer_core.api.nn import PAGE_TOKENS, Step


class SimpleCache:
    """Keys and values as fp32 rows, one flat table per attention layer; attention written out per row.

    With ``dtype`` every row goes through that storage's encode and decode, so that a model sees its rounding.
    ``stored[layer]``: [pages * 64] bool, the cache slots written since the last ``forget_marks``.
    """

    def __init__(self, geometry: KVGeometry, pages: int, *, dtype: KVDtype | None = None) -> None:
        self.geometry = geometry
        slots = pages * PAGE_TOKENS
        shapes = list(zip(geometry.heads, geometry.head_dims, strict=True))
        # a row nobody stored reads as NaN and spoils whatever attends to it
        self.keys = [torch.full((slots, heads, dim), float("nan")) for heads, dim in shapes]
        self.values = [torch.full((slots, heads, dim), float("nan")) for heads, dim in shapes]
        self.stored = [torch.zeros(slots, dtype=torch.bool) for _ in shapes]
        self.codecs = [open_codec(dtype, dim) if dtype else None for _, dim in shapes]

    def forget_marks(self) -> None:
        for mark in self.stored:
            mark.zero_()

    def store(self, layer: int, k_TGD: Tensor, v_TGD: Tensor, step: Step) -> None:
        slots = step.cache_slots.cpu()
        codec = self.codecs[layer]
        for table, rows, part in ((self.keys[layer], k_TGD, "keys"), (self.values[layer], v_TGD, "values")):
            rows = rows.detach().float().cpu()
            expected = (slots.numel(), *table.shape[1:])
            if tuple(rows.shape) != expected:
                raise ValueError(f"layer {layer}: {part} of shape {tuple(rows.shape)}, the geometry says {expected}")
            table[slots] = through(codec, part, rows) if codec else rows
        self.stored[layer][slots] = True

    def attend(self, layer: int, q_THD: Tensor, step: Step, scale: float) -> Tensor:
        out = torch.empty_like(q_THD)
        for row in range(step.rows):
            first, last = step.starts[row], step.starts[row + 1]
            k_SGD, v_SGD = self.gather(layer, step, row, 0, step.frontiers[row] + last - first)
            q_tHD = q_THD[first:last].float().cpu()
            group = q_tHD.shape[1] // k_SGD.shape[1]
            k_SHD, v_SHD = k_SGD.repeat_interleave(group, 1), v_SGD.repeat_interleave(group, 1)
            scores_HtS = torch.einsum("thd,shd->hts", q_tHD, k_SHD) * scale
            at_t = step.positions[first:last].cpu()
            at_S = torch.arange(k_SGD.shape[0])
            scores_HtS.masked_fill_(at_S[None, :] > at_t[:, None], float("-inf"))
            out[first:last] = torch.einsum("hts,shd->thd", scores_HtS.softmax(-1), v_SHD).to(out)
        return out

    def gather(self, layer: int, step: Step, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, end)
        slots = step.page_table[row].cpu()[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
        return self.keys[layer][slots], self.values[layer][slots]


def open_codec(dtype: KVDtype, head_dim: int) -> KVCodec:
    """The storage's codecs for one head dimension; a lone RowCodec serves keys and values alike."""
    codec = dtype.open(head_dim)
    return codec if isinstance(codec, KVCodec) else KVCodec(keys=codec, values=codec)


def through(codec: KVCodec, part: str, rows_TGD: Tensor) -> Tensor:
    """Encode and decode, the storage's rotation undone."""
    rows = rows_TGD.reshape(-1, rows_TGD.shape[-1])
    side, rotates = (codec.keys, codec.rotates_keys) if part == "keys" else (codec.values, codec.rotates_values)
    decoded = side.decode(side.encode(rows))
    return (hadamard(decoded) if rotates else decoded).reshape(rows_TGD.shape)


def hadamard(rows: Tensor) -> Tensor:
    """``H_D x`` of [R, D] fp32 rows, H the orthonormal Sylvester matrix (its own inverse); D a power of two."""
    dim = rows.shape[-1]
    out, half = rows.float(), 1
    while half < dim:
        pairs = out.reshape(-1, dim // (2 * half), 2, half)
        out = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2).reshape(-1, dim)
        half *= 2
    return torch.mul(out, dim**-0.5)
