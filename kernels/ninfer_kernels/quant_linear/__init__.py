"""Matrices stored in blocks of low-bit codes, multiplied and decoded on the CPU without a dense copy."""

from .blocks import BLOCKS, Block, row_bytes
from .routes import Matrix, NativeLinear, TorchLinear, decode, linear, why_not_native

__all__ = [
    "BLOCKS",
    "Block",
    "Matrix",
    "NativeLinear",
    "TorchLinear",
    "decode",
    "linear",
    "row_bytes",
    "why_not_native",
]
