"""The paged KV pool in the chosen storage: encoded on the way in, read back in its stored form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_core.api import InvariantError, KVCodec, KVDtype, KVGeometry, Plane, RowCodec
from ninfer_core.api.nn import PAGE_TOKENS, Step
from ninfer_core.errors import PluginError
from ninfer_kernels import hadamard, paged_attention
from ninfer_kernels.paged_attention import Rows, Stored


def page_bytes(geometry: KVGeometry, dtype: KVDtype) -> int:
    """Bytes of one 64-token page over all layers, keys and values; Refusal for a geometry the storage cannot hold."""
    row_bytes = 0
    for heads, head_dim in zip(geometry.heads, geometry.head_dims, strict=True):
        for planes in _planes(dtype, head_dim):
            row_bytes += heads * sum(plane.width * _torch_dtype(dtype, plane).itemsize for plane in planes)
    return PAGE_TOKENS * row_bytes


@dataclass(frozen=True, slots=True)
class LayerPool:
    """One attention layer: its codec, and the planes [pages, G, 64, width] of its keys and of its values."""

    codec: KVCodec
    keys: Stored
    values: Stored
    heads: int
    head_dim: int


class KVCache:
    """``api.nn.Cache`` over ``pages`` pages of 64 tokens. Called by the engine thread only.

    A page id selects the same page in every plane of every layer. Planes start as zeros. ``reference``: attention and
    rotation are their fp32 references.
    """

    def __init__(
        self, geometry: KVGeometry, dtype: KVDtype, pages: int, device: torch.device | str, reference: bool
    ) -> None:
        self.geometry, self.dtype, self.pages = geometry, dtype, pages
        self.device = torch.device(device)
        self.bytes = pages * page_bytes(geometry, dtype)
        self._attend = paged_attention.reference.attend if reference else paged_attention.attend
        self._scatter = paged_attention.store.reference if reference else paged_attention.store.store
        self._rotate = hadamard.reference.rotate if reference else hadamard.rotate
        # outside inference mode, so that steps in and out of it may write to the planes
        with torch.inference_mode(False):
            self.layers = tuple(
                self._layer(heads, head_dim) for heads, head_dim in zip(geometry.heads, geometry.head_dims, strict=True)
            )
        self._step: Step | None = None
        self._rows = Rows((0,), (), torch.empty(0, 0, dtype=torch.int64))

    def store(self, layer: int, k_TGD: Tensor, v_TGD: Tensor, step: Step) -> None:
        """Encode this step's keys and values into ``step.cache_slots``. Each [T, G, D], any float."""
        pool = self.layers[layer]
        if k_TGD.shape[1:] != (pool.heads, pool.head_dim) or k_TGD.shape != v_TGD.shape:
            expected = f"[T, {pool.heads}, {pool.head_dim}]"
            raise InvariantError(f"layer {layer} stores {expected}, not {tuple(k_TGD.shape)}, {tuple(v_TGD.shape)}")
        slots = self._derived(step).derived("slots", lambda: paged_attention.store.Slots(step.cache_slots))
        self._scatter(k_TGD, v_TGD, pool.keys, pool.values, slots)

    def attend(self, layer: int, q_THD: Tensor, step: Step, scale: float) -> Tensor:
        """Causal attention of every row over its stored history, this step included: [T, H, D] like ``q``."""
        pool = self.layers[layer]
        # back in the dtype of the activations: products of half floats are the GPU's business
        q = self._rotate(q_THD).to(q_THD.dtype) if pool.codec.rotates_keys else q_THD
        own, turned = q_THD.dtype, pool.codec.rotates_values
        out: Tensor = self._attend(
            q, pool.keys, pool.values, self._derived(step), scale, torch.float32 if turned else own
        )
        return self._rotate(out).to(own) if turned else out

    def gather(self, layer: int, step: Step, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Stored keys and values of positions [start, end) of one row: two [end - start, G, D] fp32, decoded and, where
        the storage rotates, rotated back."""
        pool = self.layers[layer]
        positions = torch.arange(start, end, device=self.device)
        pages, offsets = step.page_table[row, positions // PAGE_TOKENS], positions % PAGE_TOKENS
        keys, values = pool.keys.slots(pages, offsets), pool.values.slots(pages, offsets)
        return (
            self._rotate(keys) if pool.codec.rotates_keys else keys,
            self._rotate(values) if pool.codec.rotates_values else values,
        )

    def _derived(self, step: Step) -> Rows:
        """The step's rows with what is computed from them once for all layers; a step's tensors do not change."""
        if step is not self._step:
            on = step.on_device
            uploaded = None if on is None else (on.firsts, on.widths, on.frontiers)
            self._step, self._rows = step, Rows(step.starts, step.frontiers, step.page_table, uploaded)
        return self._rows

    def _layer(self, heads: int, head_dim: int) -> LayerPool:
        codec = _codec(self.dtype, head_dim)
        sides = []
        for planes, side in zip(_planes(self.dtype, head_dim), (codec.keys, codec.values), strict=True):
            tensors = tuple(
                torch.zeros(
                    self.pages,
                    heads,
                    PAGE_TOKENS,
                    plane.width,
                    dtype=_torch_dtype(self.dtype, plane),
                    device=self.device,
                )
                for plane in planes
            )
            fused = {name: getattr(side, name, None) for name in ("device_decode", "device_encode")}
            is_cast = getattr(side, "is_cast", False)
            sides.append(Stored(tensors, side.decode, is_cast=is_cast, encode=side.encode, **fused))
        return LayerPool(codec=codec, keys=sides[0], values=sides[1], heads=heads, head_dim=head_dim)


def _codec(dtype: KVDtype, head_dim: int) -> KVCodec:
    opened: KVCodec | RowCodec = dtype.open(head_dim)
    return opened if isinstance(opened, KVCodec) else KVCodec(keys=opened, values=opened)


def _planes(dtype: KVDtype, head_dim: int) -> tuple[tuple[Plane, ...], tuple[Plane, ...]]:
    """The planes of a key row and of a value row."""
    return dtype.key_planes(head_dim), (dtype.value_planes or dtype.key_planes)(head_dim)


def _torch_dtype(dtype: KVDtype, plane: Plane) -> torch.dtype:
    found = getattr(torch, plane.dtype, None)
    if not isinstance(found, torch.dtype):
        raise PluginError(f"--kv-dtype {dtype.name}: its plane of type {plane.dtype!r} is no torch dtype")
    return found
