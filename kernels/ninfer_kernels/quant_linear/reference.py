"""The definition of the block formats and of their matrix product, in plain torch (``spec/artifact.md`` §11.5).

Value arithmetic is fp32: scale times sub-scale, rounded; times the code, rounded; minus the minimum, rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import reference_planes
from .blocks import BLOCKS
from .planes import PLANES, layout


def decode(format: str, data: Tensor, rows: int, columns: int) -> Tensor:
    """data: the matrix's bytes, uint8 -> [rows, columns] fp32."""
    _, size = layout(format, rows, columns)
    if data.numel() != size:
        raise ValueError(f"{data.numel()} bytes are not a {format} matrix of {rows} x {columns}")
    if format in PLANES:
        return reference_planes.decode(format, data, rows, columns)
    return DECODERS[format](data.reshape(-1, BLOCKS[format].bytes)).reshape(rows, columns)


def linear(format: str, data: Tensor, rows: int, x: Tensor) -> Tensor:
    """x: [T, K] -> [T, rows] fp32: the decoded matrix times x, products and sums in fp32."""
    return x.float() @ decode(format, data, rows, x.shape[1]).T


def half(blocks: Tensor, offset: int) -> Tensor:
    """The binary16 at ``offset`` of every block: [B, 1] fp32."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """[B, 16] uint8 -> [B, 32]: the low nibbles, then the high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=1)


def five_bits(blocks: Tensor, offset: int) -> Tensor:
    """[B, 32] int32 codes; the little-endian word of high bits is at ``offset``, the nibbles follow it."""
    high = blocks[:, offset : offset + 4].contiguous().view(torch.int32)
    bits = (high >> torch.arange(32, dtype=torch.int32)) & 1
    return nibbles(blocks[:, offset + 4 : offset + 20]).int() | bits << 4


def q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).int() - 8).float()


def q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).float() + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (five_bits(blocks, 2) - 16).float()


def q5_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * five_bits(blocks, 4).float() + half(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def q4_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], dim=1).float()
    minimum = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], dim=1).float()
    pairs = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = torch.cat([pairs & 15, pairs >> 4], dim=2).reshape(-1, 8, 32).float()
    step, base = (half(blocks, 0) * scale)[:, :, None], (half(blocks, 2) * minimum)[:, :, None]
    return step * codes - base


def q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    low = torch.cat([low & 15, low >> 4], dim=2).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = ((low | high << 4).int() - 32).reshape(-1, 16, 16).float()
    scale = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (half(blocks, 208) * scale)[:, :, None] * codes


def bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def fp32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32).clone()


DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q5_1": q5_1,
    "q8_0": q8_0,
    "q4_k": q4_k,
    "q6_k": q6_k,
    "bf16": bf16,
    "fp32": fp32,
}
