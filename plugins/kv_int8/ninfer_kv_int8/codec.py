"""The int8 row codec of keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ninfer_kernels import hadamard, kv_int8


class Int8Codec:
    """Rows as s8 codes in groups of 64 with fp16 scales; what is encoded is the row rounded to bf16, as on a device
    that computes in bf16. ``rotates``: the rounded row is rotated in fp32 first, and stays so in ``decode``."""

    def __init__(self, *, rotates: bool) -> None:
        self.rotates = rotates

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """[R, D] any float -> codes [R, D] int8, scales [R, D/64] fp16."""
        rounded = rows.to(torch.bfloat16)
        return kv_int8.encode(hadamard.rotate(rounded) if self.rotates else rounded)

    @staticmethod
    def device_decode() -> Any:
        """``decode`` for fused attention on a GPU; loads triton."""
        from ninfer_kernels.kv_int8 import kernel

        return kernel.decode

    def device_encode(self) -> Any:
        """``encode`` for storing on a GPU; loads triton."""
        from ninfer_kernels.kv_int8 import kernel

        return kernel.encode_rotated if self.rotates else kernel.encode

    def decode(self, planes: tuple[Tensor, ...]) -> Tensor:
        """-> [R, D] fp32."""
        codes, scales = planes
        return kv_int8.decode(codes, scales)
