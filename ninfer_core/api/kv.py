"""KV storages: what ``--kv-dtype`` chooses (``spec/kv-dtypes.md``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class KVGeometry:
    """What a model stores per token: one entry per attention layer."""

    heads: tuple[int, ...]  # KV heads of each attention layer
    head_dims: tuple[int, ...]  # head dimension of each attention layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Plane:
    """One plane of a stored row: ``width`` elements of ``dtype`` per (token, KV head)."""

    dtype: str  # a torch dtype by name: "bfloat16", "int8", "float16"
    width: int


class RowCodec(Protocol):
    """Encodes and decodes rows of one head dimension D; keys and values alike.

    ``encode``: [R, D] float -> one tensor [R, width] per plane. ``decode``: the planes -> [R, D] fp32. Rows stand for
    themselves: how one is encoded depends on no other. A codec of one plane whose ``decode`` only widens its elements
    may also say ``is_cast = True``: fused attention then reads the plane itself. A codec of up to two planes may have a
    ``device_decode()`` that loads triton and returns its decode as a ``@triton.jit`` function (the signature of
    ``ninfer_kernels.kv_int8.kernel.decode``): attention on a GPU then reads the planes without decoding them first.
    ``device_encode()`` likewise (``ninfer_kernels.kv_int8.kernel.encode``): rows are then stored by one kernel.
    """

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]: ...

    def decode(self, planes: tuple[Tensor, ...]) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCodec:
    """The two codecs of one layer. ``rotates_keys``: ``decode`` gives ``H_D k``, so the core also rotates the query;
    ``rotates_values``: the core rotates the attention output back (``spec/kv-dtypes.md`` §2, §12)."""

    keys: RowCodec
    values: RowCodec
    rotates_keys: bool = False
    rotates_values: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class KVDtype:
    """A KV storage selectable with ``--kv-dtype``.

    ``key_planes(D)`` and ``value_planes(D)`` give the planes of one row (``value_planes`` defaults to the key's); the
    bytes per token follow from them. Both raise Refusal for a head dimension the storage cannot hold. ``open(D)``
    loads torch and returns a KVCodec, or one RowCodec used for keys and values alike.
    """

    name: str
    summary: str
    key_planes: Callable[[int], tuple[Plane, ...]]
    open: Callable[[int], KVCodec | RowCodec]
    value_planes: Callable[[int], tuple[Plane, ...]] | None = None
    default: bool = False  # chosen when --kv-dtype is omitted; one storage may say so
