"""GGUF files as models: the importer of ``*.gguf`` and the block formats its tensors are stored in."""

import os

from ninfer_core.api import Importer, Source, WeightFormat, hookimpl

from .formats import FORMATS

NINFER_API = 1


def claims(path: str) -> bool:
    """A file that is named or begins like a GGUF file."""
    if not os.path.isfile(path):
        return False
    if path.lower().endswith(".gguf"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"GGUF", b"FUGG")
    except OSError:
        return False


def open_gguf(path: str) -> Source:
    from .importer import open_source  # numpy, tokenizers and torch load here, never at discovery

    return open_source(path)


@hookimpl
def ninfer_importers() -> list[Importer]:
    return [Importer(name="gguf", summary="GGUF files of llama.cpp", claims=claims, open=open_gguf)]


@hookimpl
def ninfer_weight_formats() -> tuple[WeightFormat, ...]:
    return FORMATS
