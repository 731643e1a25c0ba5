"""The definition of the formats whose blocks are spread over planes, in plain torch (``spec/artifact.md`` §11.2-11.4).

Codes and scales are found by the layout, each value is their product in fp32. ``nvfp4`` is decoded without its
divisor, which the owner of the tensor divides by.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .planes import FORMATS
from .stored_rows import split

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BITS = {"q2_g64": 2, "t2_g128": 2, "q4_g64": 4, "q5_g64": 5, "q6_g64": 6, "q8_g32": 8}


def decode(format: str, data: Tensor, rows: int, columns: int) -> Tensor:
    """data: flat uint8 of the whole matrix -> [rows, columns] fp32."""
    parts = split(format, data, rows, columns)
    if format == "nvfp4":
        return nvfp4(*parts)
    if format.startswith("fp8_row"):
        return fp8_row(*parts, torch.bfloat16 if format == "fp8_row_bf16" else torch.float16)
    values = numbers(format, parts).float().view(rows, -1, FORMATS[format].values)
    step = words_of(parts[-1], torch.float16).float()
    return (values * step[:, :, None]).view(rows, -1)[:, :columns].contiguous()


def numbers(format: str, parts: list[Tensor]) -> Tensor:
    """The whole numbers a groupwise matrix holds, padding included: [rows, padded columns] int16."""
    base, *high, _ = parts
    bits = BITS[format]
    stored = base if bits == 8 else unpacked(base, min(bits, 4))
    for upper in high:
        stored = stored | unpacked(upper, bits - 4) << 4
    words = stored.to(torch.int16)
    if format == "q2_g64":
        return words - 1
    return torch.where(words >= 1 << bits - 1, words - (1 << bits), words)


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Bytes of ``8 / bits`` codes, lowest first: [R, B] -> [R, B * 8 / bits] uint8."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def packed(codes: Tensor, bits: int) -> Tensor:
    """The inverse of ``unpacked``; codes: [R, C] uint8 below ``2 ** bits``."""
    lanes = codes.view(len(codes), -1, 8 // bits)
    out = lanes[..., 0].clone()
    for lane in range(1, 8 // bits):
        out |= lanes[..., lane] << lane * bits
    return out


def words_of(part: Tensor, kind: torch.dtype) -> Tensor:
    """Bytes at any address as words."""
    return part.clone(memory_format=torch.contiguous_format).view(kind)


def e4m3(words: Tensor) -> Tensor:
    """E4M3FN codes (uint8) as fp32; 0x7F and 0xFF are NaN."""
    return words.contiguous().view(torch.float8_e4m3fn).float()


def fp8_row(codes: Tensor, scales: Tensor, kind: torch.dtype) -> Tensor:
    """fp32(code) * fp32(scale), one scale a row."""
    return e4m3(codes) * words_of(scales, kind).float()


def nvfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """e2m1(code) * e4m3(scale of its 16 columns); the product is exact."""
    values = torch.tensor(E2M1)[unpacked(codes, 4).int()].view(*scales.shape, 16)
    return (values * e4m3(scales)[:, :, None]).flatten(1)
