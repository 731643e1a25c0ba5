"""Keys and values of a few tokens into the pages of a storage that only casts: one compiled pass for both sides.

``reference`` is the definition: encode by a cast, then scatter rows. The compiled route serves a decode round's few
tokens in fp32 on the CPU; anything else goes through torch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FEW_TOKENS = 64


def reference(k_TGD: Tensor, v_TGD: Tensor, key_plane: Tensor, value_plane: Tensor, index: Tensor) -> None:
    """Write rows ``index`` ([T * G] int64, of a plane seen as [rows, D]) of both planes."""
    with torch.no_grad():
        for rows, plane in ((k_TGD, key_plane), (v_TGD, value_plane)):
            flat = rows.reshape(-1, rows.shape[-1]).to(plane.dtype)
            plane.view(-1, plane.shape[-1]).index_copy_(0, index, flat)


def store(k_TGD: Tensor, v_TGD: Tensor, key_plane: Tensor, value_plane: Tensor, index: Tensor) -> None:
    """As ``reference``, bit for bit."""
    T, G, D = k_TGD.shape
    compiled = _compiled().get(key_plane.dtype) if _few(k_TGD, D) and _few(v_TGD, D) else None
    if compiled is None or value_plane.dtype is not key_plane.dtype or not key_plane.is_cpu:
        reference(k_TGD, v_TGD, key_plane, value_plane, index)
        return
    compiled(
        k_TGD.data_ptr(),
        v_TGD.data_ptr(),
        key_plane.data_ptr(),
        value_plane.data_ptr(),
        index.data_ptr(),
        T,
        G,
        D,
        k_TGD.stride(0),
        v_TGD.stride(0),
    )


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
