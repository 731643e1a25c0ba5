"""Rows as int8 codes with one fp16 scale per 64 elements."""

from .reference import GROUP, decode, encode

__all__ = ["GROUP", "decode", "encode"]
