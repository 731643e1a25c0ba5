"""The block formats: how many values a block holds in how many bytes (``spec/artifact.md`` §11.5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    values: int
    bytes: int


BLOCKS: dict[str, Block] = {
    "q4_0": Block(32, 18),
    "q4_1": Block(32, 20),
    "q5_0": Block(32, 22),
    "q5_1": Block(32, 24),
    "q8_0": Block(32, 34),
    "q4_k": Block(256, 144),
    "q6_k": Block(256, 210),
}
