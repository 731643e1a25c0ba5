"""Keys and values of a few tokens into the pages of their storage: one pass for both sides.

``reference`` is the definition: encode, then scatter rows. On a GPU a kernel does both for every storage that has
device functions; on the CPU a compiled route serves a decode round's few tokens in fp32 where the storage only casts.
Anything else goes through torch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ninfer_kernels.device import gpu_route

from .layout import PAGE_TOKENS, Stored

FEW_TOKENS = 64


class Slots:
    """Where the tokens of one step go: token ``t`` to page ``at[t] // P``, its place there ``at[t] % P``; [T] int64."""

    def __init__(self, at: Tensor) -> None:
        self.at = at
        self._rows: dict[int, Tensor] = {}

    def rows(self, heads: int) -> Tensor:
        """[T * G] int64: where each (token, head) lies in a plane seen as [pages * G * P, X]; made once for all layers
        that want it."""
        if heads not in self._rows:
            pages, places = self.at // PAGE_TOKENS, self.at % PAGE_TOKENS
            head = torch.arange(heads, device=self.at.device)
            self._rows[heads] = ((pages[:, None] * heads + head) * PAGE_TOKENS + places[:, None]).reshape(-1)
        return self._rows[heads]


def reference(k_TGD: Tensor, v_TGD: Tensor, keys: Stored, values: Stored, slots: Slots) -> None:
    """Write each token's rows of the planes of both sides; each of k, v: [T, G, D], any float."""
    index = slots.rows(k_TGD.shape[1])
    with torch.no_grad():
        for rows, side in ((k_TGD, keys), (v_TGD, values)):
            assert side.encode is not None
            encoded = side.encode(rows.reshape(-1, rows.shape[-1]))
            for plane, part in zip(side.planes, encoded, strict=True):
                plane.view(-1, plane.shape[-1]).index_copy_(0, index, part)


def store(k_TGD: Tensor, v_TGD: Tensor, keys: Stored, values: Stored, slots: Slots) -> None:
    """As ``reference``, bit for bit."""
    gpu = gpu_route(k_TGD, __package__, "gpu_store")
    if gpu is not None and gpu.serves(k_TGD, v_TGD, keys, values):
        gpu.store(k_TGD, v_TGD, keys, values, slots.at)
        return
    compiled = _compiled_for(k_TGD, v_TGD, keys, values)
    if compiled is None:
        reference(k_TGD, v_TGD, keys, values, slots)
        return
    T, G, D = k_TGD.shape
    compiled(
        k_TGD.data_ptr(),
        v_TGD.data_ptr(),
        keys.planes[0].data_ptr(),
        values.planes[0].data_ptr(),
        slots.rows(G).data_ptr(),
        T,
        G,
        D,
        k_TGD.stride(0),
        v_TGD.stride(0),
    )


def _compiled_for(k_TGD: Tensor, v_TGD: Tensor, keys: Stored, values: Stored) -> Callable[..., Any] | None:
    plane = keys.planes[0]
    if not (keys.is_cast and values.is_cast and plane.is_cpu and values.planes[0].dtype is plane.dtype):
        return None
    few = _few(k_TGD, k_TGD.shape[2]) and _few(v_TGD, k_TGD.shape[2])
    return _compiled().get(plane.dtype) if few else None


def _few(x_TGD: Tensor, dim: int) -> bool:
    few = x_TGD.shape[0] <= FEW_TOKENS and x_TGD.dtype is torch.float32 and x_TGD.is_cpu
    return few and x_TGD.stride()[1:] == (dim, 1)


@functools.cache
def _compiled() -> dict[torch.dtype, Callable[..., Any]]:
    """By storage dtype; empty where numba is missing or cannot compile here."""
    try:
        from . import store_jit
    except Exception as error:
        logging.getLogger(__name__).warning("kv store: torch route, no compiled one (%s)", type(error).__name__)
        return {}
    return store_jit.STORE
