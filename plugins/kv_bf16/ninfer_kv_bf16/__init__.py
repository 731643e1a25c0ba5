"""--kv-dtype bf16: keys and values as bfloat16, the default. --kv-dtype fp32: as they are, the reference storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ninfer_core.api import KVDtype, Plane, hookimpl

if TYPE_CHECKING:
    from .codec import CastCodec

NINFER_API = 1


@hookimpl
def ninfer_kv_dtypes() -> list[KVDtype]:
    return [
        KVDtype(
            name="bf16",
            summary="bfloat16 keys and values, any head dimension",
            key_planes=_one_plane("bfloat16"),
            open=_cast_to("bfloat16"),
            default=True,
        ),
        KVDtype(
            name="fp32",
            summary="unrounded keys and values for comparisons, twice the memory of bf16",
            key_planes=_one_plane("float32"),
            open=_cast_to("float32"),
        ),
    ]


def _one_plane(dtype: str) -> Callable[[int], tuple[Plane, ...]]:
    return lambda head_dim: (Plane(dtype=dtype, width=head_dim),)


def _cast_to(dtype: str) -> Callable[[int], CastCodec]:
    def open_codec(head_dim: int) -> CastCodec:
        from .codec import CastCodec

        return CastCodec(dtype)

    return open_codec
