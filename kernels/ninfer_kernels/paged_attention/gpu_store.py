"""The launch of the scatter into pages on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ninfer_kernels import pdl
from ninfer_kernels.launching import launch_kernel
from ninfer_kernels.sizes import cdiv

from .kernel_store import encode_cast, store_kernel
from .layout import PAGE_TOKENS, Stored

ROWS = 4  # of a program


def serves(k_TGD: Tensor, v_TGD: Tensor, keys: Stored, values: Stored) -> bool:
    """Whether there is a kernel for this head dimension and stored form, and the rows lie as it reads them."""
    D = k_TGD.shape[2]
    sized = D >= 16 and D & (D - 1) == 0 and k_TGD.shape[0] > 0
    return sized and k_TGD.stride(2) == v_TGD.stride(2) == 1 and None not in (_encoder(keys), _encoder(values))


def store(k_TGD: Tensor, v_TGD: Tensor, keys: Stored, values: Stored, slots: Tensor) -> None:
    """``store.reference``; slots: [T] int64, contiguous."""
    T, G, D = k_TGD.shape
    launch_kernel(
        store_kernel, (cdiv(T * G, ROWS),),
        k_TGD, v_TGD, keys.planes[0], keys.planes[-1], values.planes[0], values.planes[-1], slots, T * G,
        *k_TGD.stride()[:2], *v_TGD.stride()[:2],
        G=G, D=D, P=PAGE_TOKENS, BR=ROWS, ENCODE_K=_encoder(keys), ENCODE_V=_encoder(values), num_warps=4,
        **pdl.options(k_TGD),
    )  # fmt: skip


def _encoder(side: Stored) -> Any:
    """The codec's device function, or None."""
    if side.device_encode is not None:
        return side.device_encode()
    return encode_cast if side.is_cast else None
