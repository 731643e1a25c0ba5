"""Matrices stored in blocks of low-bit codes, multiplied and decoded on the CPU without a dense copy."""

from . import planes, reference_planes, stored_rows
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
    "planes",
    "reference_planes",
    "row_bytes",
    "stored_rows",
    "why_not_native",
]
