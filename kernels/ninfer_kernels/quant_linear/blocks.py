"""The block formats: how many values a block holds in how many bytes (``spec/artifact.md`` §11.5).

``bf16`` and ``fp32`` are here so that plain matrices may take the same route; their block is just 32 values. Formats
whose blocks are spread over several planes of the matrix are in ``planes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    values: int
    bytes: int
    others: tuple[int, ...] = ()  # bytes from one block to the next in the planes beside the first


BLOCKS: dict[str, Block] = {
    "q4_0": Block(32, 18),
    "q4_1": Block(32, 20),
    "q5_0": Block(32, 22),
    "q5_1": Block(32, 24),
    "q8_0": Block(32, 34),
    "q4_k": Block(256, 144),
    "q6_k": Block(256, 210),
    "bf16": Block(32, 64),
    "fp32": Block(32, 128),
}


def row_bytes(format: str, columns: int) -> int:
    """Bytes of one row; ValueError unless whole blocks fill it."""
    block = BLOCKS[format]
    if columns <= 0 or columns % block.values:
        raise ValueError(f"a row of {columns} values is not a whole number of {format} blocks of {block.values}")
    return columns // block.values * block.bytes
